"""Configuration: files, the stored revisions, and the reference."""
