"""What is checked, and what becomes of what is found: values in, values out."""
