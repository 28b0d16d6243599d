"""A path that is asked with another method than it takes."""

from pointsman_core.refusal import Refusal


class WrongMethod(Refusal):
    """405 that says which methods are right, in words and in the header `Allow` (RFC 9110 §15.5.6)."""

    def __init__(self, method: str, path: str, allowed: str) -> None:
        """`path` is one that there is, not a client's; `allowed` are methods, separated by commas."""
        super().__init__(405, f"{method} is not allowed on {path}; use {allowed}.", code="method_not_allowed")
        self.allowed = allowed
