"""A path that there isn't."""

from pointsman_core.refusal import Refusal
from pointsman_edge.taking_in.routes import MODELS, ROUTES


def unknown_path() -> Refusal:
    """404 that names the paths that there are. The client's own isn't repeated: anything may stand in it, and what
    refuses a request is in events."""
    known = ", ".join((*ROUTES, MODELS))
    return Refusal(404, f"There is nothing at this path; the paths are {known}.", code="unknown_path")
