"""The fingerprint of a request: requests with the same fingerprint have the same answer.

The preprocessor, which decodes the body anyway, passes it to the stages. A cache computes it for a body that was
changed later.
"""

import hashlib
from collections.abc import Mapping
from typing import Final

import orjson

from pointsman_contracts.message import Blob

SIZE: Final = 16
"""Bytes."""
WITHOUT_EFFECT: Final = frozenset({
    "model", "user", "metadata", "safety_identifier", "prompt_cache_key", "prompt_cache_retention", "service_tier",
    "store", "request_id", "priority",
})  # fmt: skip
"""Members of a body that name the sender, the urgency or the model: none changes the answer. Callers keep answers of
different models apart."""
_SAID_BY_SILENCE: Final[Mapping[str, object]] = {"stream": False, "n": 1}
"""The value that an absent member stands for."""


def deciding(document: Mapping[str, object]) -> dict[str, object]:
    """The members of a body that decide its answer."""
    return {
        name: value
        for name, value in document.items()
        if value is not None and name not in WITHOUT_EFFECT and _SAID_BY_SILENCE.get(name) != value
    }


def fingerprint(api: str, members: Mapping[str, object]) -> Blob:
    """The fingerprint of a request's API and of the members that decide its answer, in any order."""
    canonical = orjson.dumps([api, members], option=orjson.OPT_SORT_KEYS)
    return Blob(hashlib.blake2b(canonical, digest_size=SIZE).digest())
