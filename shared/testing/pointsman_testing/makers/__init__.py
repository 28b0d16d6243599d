"""The makers' own schemas of what their services take, for the fakes of providers and for tests of what is sent."""

from pointsman_testing.makers.requests import load, problems

__all__ = ["load", "problems"]
