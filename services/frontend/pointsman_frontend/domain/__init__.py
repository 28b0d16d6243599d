"""Rules of HTTP requests and answers. Values in, values out; time is an argument."""
