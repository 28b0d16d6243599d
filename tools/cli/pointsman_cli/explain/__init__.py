"""One request, or many, as the stream of events and the recorder have kept them."""
