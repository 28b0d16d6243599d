"""Pure parts of the metrics-collector: values in, values out, time as an argument."""
