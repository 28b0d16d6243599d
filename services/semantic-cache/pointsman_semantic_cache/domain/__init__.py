"""What may be answered again, and by what."""
