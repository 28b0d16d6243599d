"""Identities that batches lend to the requests of their lines."""

from abc import ABC, abstractmethod
from typing import Final

from pointsman_contracts.batch import LentIdentity
from pointsman_core.door_answer import IDENTITY_UNKNOWN
from pointsman_core.refusal import Refusal
from pointsman_plugins.preprocessing import IDENTITY, Incoming
from pointsman_preprocessor.domain.credentials import digest

AUTHORIZATION: Final = "authorization"
_SCHEME: Final = len("Bearer ")


class LentIdentities(ABC):
    """The identities that are lent now."""

    @abstractmethod
    def find_lent(self, digest: str) -> LentIdentity | None:
        """The identity of the token with this digest; None while it isn't known here."""


def take_lent(incoming: Incoming, authorization: str, known: LentIdentities) -> None:
    """Give the request the identity and the priority that its batch lends it. Raises Refusal for an unknown token."""
    lent = known.find_lent(digest(authorization[_SCHEME:]))
    if lent is None or lent.expires_ms <= incoming.envelope.received_ms:
        raise Refusal(401, "This identity isn't lent to a batch, or not any more.", code=IDENTITY_UNKNOWN)
    incoming.hide_header(AUTHORIZATION)
    incoming.attributes[IDENTITY.name] = {**lent.identity, "batch": lent.batch}
    incoming.headers.priority = lent.priority
