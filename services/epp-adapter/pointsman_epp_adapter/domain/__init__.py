"""The rules of ext_proc and of endpoint pickers. Values in, values out; time is an argument."""
