"""The facts of a request as a log has them."""

from collections.abc import Callable, Collection
from typing import Final

from msgspec.structs import replace

from pointsman_contracts.journey import RequestFacts
from pointsman_contracts.message import NO_BYTES

_UNRECORDED: Final[dict[str, object]] = {
    "path": "", "blocks": NO_BYTES, "other_chains": (), "fingerprint": NO_BYTES, "fields": {}, "attributes": {},
}  # fmt: skip
"""The facts that no decision reads, or that stand elsewhere."""


def logged_facts(facts: RequestFacts, headers: Collection[str], hashed: Callable[[str], str] | None) -> RequestFacts:
    """The facts that decisions may read, with these headers. `hashed` replaces ids; None leaves them."""
    given, session, fairness_id = facts.headers, facts.session, facts.fairness_id
    kept = {name: given[name] for name in headers if name in given} if headers else {}
    if hashed is not None:
        session, fairness_id = session and hashed(session), fairness_id and hashed(fairness_id)
    return replace(facts, **_UNRECORDED, headers=kept, session=session, fairness_id=fairness_id)
