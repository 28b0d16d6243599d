"""A simulated engine, in real time behind HTTP and in virtual time for replay."""
