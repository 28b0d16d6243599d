"""A bound on how deep a body nests: what is read has to be written again, here and by stages, and orjson reads 1,024
levels and writes 254.

Nothing is looked through for it: most of a body is written for its prompt anyway.
"""

from typing import Final

import orjson

from pointsman_core.refusal import Refusal

DEEPEST: Final = 200
"""Levels that are promised; some more may pass."""
AROUND: Final = 8
"""Levels that a writer of a part of the body may put around it: a fingerprint's, or those of a provider's API."""


def too_deep() -> Refusal:
    """Of a body."""
    return Refusal(
        400, f"The body nests arrays and objects too deep; {DEEPEST} levels may be sent.", code="body_too_complex"
    )


def written(part: object) -> bytes:
    """A part of a body as JSON, between `AROUND` brackets on either side. Raises Refusal 400."""
    try:
        return orjson.dumps([[[[[[[[part]]]]]]]])
    except orjson.JSONEncodeError as error:
        raise too_deep() from error
