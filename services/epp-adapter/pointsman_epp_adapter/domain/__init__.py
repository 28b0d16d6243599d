"""What ext_proc asks of an endpoint picker. Values in, values out; time is an argument."""
