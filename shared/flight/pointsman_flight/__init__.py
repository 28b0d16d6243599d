"""The flight log of one scheduler and one pool: its records, its segments on disk, a writer and a reader."""
