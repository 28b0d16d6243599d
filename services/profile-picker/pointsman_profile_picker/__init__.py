"""Chooses one profile per request and writes its itinerary."""
