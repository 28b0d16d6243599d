"""What this edge alone knows about requests and answers. Values in, values out; time is an argument."""
