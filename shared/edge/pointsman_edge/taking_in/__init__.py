"""What an edge reads of a request, and what it refuses before anyone decides."""
