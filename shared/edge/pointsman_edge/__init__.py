"""What every edge does alike, whichever protocol its requests arrive by."""
