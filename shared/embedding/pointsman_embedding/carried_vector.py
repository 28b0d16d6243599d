"""A prompt's vector in the attributes of a request, so that one embedding serves every stage.

It has none of the prompt's words. The hash of the text shows a later stage whether it would embed the same one: a guard
may have changed it in between.
"""

import base64
from collections.abc import Mapping
from typing import Final, cast

import numpy as np
import xxhash
from pydantic import JsonValue

from pointsman_core.plugins import Key
from pointsman_embedding.embedder import Vector

CARRIED: Final[Key[dict[str, JsonValue]]] = Key("prompt_embedding", dict[str, JsonValue])
"""`by`: the embedder's name, `of`: the hash of the text, `values`: the base64 form of two bytes for each place."""
_MOST_PLACES: Final = 4096
"""Longer vectors are embedded again by the later stage: a journey has room for 64 KiB."""
_STEP: Final = 32767


def carry(by: str, text: str, vector: Vector) -> dict[str, JsonValue] | None:
    """The attribute's value; None for a vector that is too long for a journey."""
    if len(vector) > _MOST_PLACES:
        return None
    # Rounding to two bytes a coordinate changes the product of two vectors by less than 0.0001.
    places = np.rint(vector * _STEP).astype("<i2").tobytes()
    return {"by": by, "of": _hash(text), "values": base64.b64encode(places).decode("ascii")}


def carried(attributes: Mapping[str, JsonValue], by: str, text: str) -> Vector | None:
    """The vector of `text` that an earlier stage had made by the embedder `by`; None when there is no such vector."""
    value = attributes.get(CARRIED.name)
    if not isinstance(value, dict) or value.get("by") != by or value.get("of") != _hash(text):
        return None
    try:
        places = np.frombuffer(base64.b64decode(str(value.get("values")), validate=True), "<i2")
    except ValueError:
        return None
    return cast("Vector", places.astype(np.float32) / np.float32(_STEP)) if len(places) else None


def _hash(text: str) -> str:
    return xxhash.xxh3_128_hexdigest(text.encode("utf-8", "surrogatepass"))
