"""What a request asks, as a fingerprint: two with the same one have the same answer.

The preprocessor, which has decoded the body anyway, says it to the stages; a cache computes it itself of a body that
was changed since.
"""

import hashlib
from collections.abc import Mapping
from typing import Final

import orjson

SIZE: Final = 16
"""Bytes."""
WITHOUT_EFFECT: Final = frozenset({
    "model", "user", "metadata", "safety_identifier", "prompt_cache_key", "prompt_cache_retention", "service_tier",
    "store", "request_id", "priority",
})  # fmt: skip
"""Members of a body that say who asks, how urgently, and whom: none changes what the answer is. Answers of different
models are kept apart by whoever keeps them."""
_SAID_BY_SILENCE: Final[Mapping[str, object]] = {"stream": False, "n": 1}
"""What leaving a member out means."""


def deciding(document: Mapping[str, object]) -> dict[str, object]:
    """The members of a body that decide its answer."""
    return {
        name: value
        for name, value in document.items()
        if value is not None and name not in WITHOUT_EFFECT and _SAID_BY_SILENCE.get(name) != value
    }


def fingerprint(api: str, members: Mapping[str, object]) -> bytes:
    """Of a request's API and the members that decide its answer, in whatever order they stand."""
    canonical = orjson.dumps([api, members], option=orjson.OPT_SORT_KEYS)
    return hashlib.blake2b(canonical, digest_size=SIZE).digest()
