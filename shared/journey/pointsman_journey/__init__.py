"""A request's way through the stages: routing slip, stages, edges, and the table of live instances."""
