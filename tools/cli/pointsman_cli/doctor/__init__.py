"""`pointsman doctor`: facts are collected, findings follow from them."""
