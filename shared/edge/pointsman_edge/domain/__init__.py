"""What edges know about requests and answers. Values in, values out; time is an argument."""
