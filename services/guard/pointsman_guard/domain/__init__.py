"""Checks texts and acts on the findings: values in, values out."""
