"""Which answers may be given again, and to which requests."""
