"""The answer to a request that a service sends through the gateway's own door. Pure."""

from typing import Final, Literal, NamedTuple

IDENTITY_UNKNOWN: Final = "lent_identity_unknown"
"""Code of the refusal of a token that a preprocessor doesn't know, or doesn't know yet."""


class DoorAnswer(NamedTuple):
    """A whole answer, or why there is none."""

    status: int
    """0 without a whole answer."""
    body: bytes
    request_id: str = ""
    retry_after_s: float | None = None
    failure: Literal["", "unsent", "failed", "late", "oversized"] = ""
    """`unsent`: no gateway got the request. `failed`: it got it, and its answer broke off."""
    problem: str = ""
    """The failure in words, without content of request or answer."""
    limited: bool = False
    """Whether a limit of its sender refused it."""

    @property
    def identity_unknown(self) -> bool:
        """Whether a preprocessor doesn't know the identity that is lent to the request: it may know it soon."""
        return self.status == 401 and IDENTITY_UNKNOWN.encode() in self.body
