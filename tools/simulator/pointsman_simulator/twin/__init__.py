"""The twin: engines fitted to a flight log, and the log's arrivals run on them in virtual time."""
