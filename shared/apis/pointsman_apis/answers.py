"""Reads the texts of an answer: those that its API knows, and every other string in it.

Only these are left out, since they hold no text: identifiers, sounds and images, log probabilities, and the members
that repeat the request.
"""

from itertools import compress
from typing import Final, NamedTuple, cast

from pointsman_apis.api import Api
from pointsman_apis.texts import Answer, Slot, error_slots, is_error

OTHER: Final = "other"
"""`AnswerText.kind` of a text that is neither content, reasoning nor arguments; also the choice that it belongs to."""
LONGEST_NAME: Final = 64
"""Characters of a member's name."""
LONGEST_IDENTIFIER: Final = 128
"""Characters."""

_IDENTIFIERS: Final = frozenset(
    (
        *("id", "object", "model", "type", "role", "name", "status", "finish_reason", "native_finish_reason"),
        *("stop_reason", "system_fingerprint", "service_tier", "provider", "media_type", "format"),
    )
)
"""Members that hold a name or an identifier. A member whose name ends in `_id` does too."""
_BINARY: Final = frozenset(
    (
        *("data", "b64_json", "embedding", "encrypted_content", "signature", "obfuscation", "partial_image_b64"),
        *("result", "file_data"),
    )
)
"""Members that hold Base64."""
_SPELLING: Final = frozenset({"logprobs", "prompt_logprobs"})
_TELLING: Final = frozenset({str, dict, list})
"""Types of members that may hold a text."""
_SPACES: Final = (" ", "\n", "\t")


_Path = tuple["_Path | None", object]
"""The place of an object: the path of the object around it, and the name or number there."""


class Reading(NamedTuple):
    """The texts of a document."""

    slots: list[Slot]
    whole: bool
    """Every text of the document is among them."""


def slots_of(api: Api, document: Answer) -> list[Slot]:
    """The texts that the API knows in a whole answer or in one event of a stream, without empty ones. Of an error, its
    message comes first."""
    found = [slot for slot in api.slots(document) if slot.text]
    return [*(slot for slot in error_slots(document) if slot.text), *found] if is_error(document) else found


def read(api: Api, document: Answer) -> Reading:
    """All texts of a whole answer or of one event of a stream."""
    known = slots_of(api, document)
    found: list[Slot] = []
    places = {slot.place for slot in known}
    whole = _look(document, None, places, found, api.echoed)
    return Reading([*known, *found] if found else known, whole)


def _look(
    holder: Answer, where: _Path | None, known: set[tuple[int, str]], found: list[Slot], echoed: frozenset[str]
) -> bool:
    """Find the texts of an object and of those inside it. Returns whether these are all."""
    names = "".join(holder)
    whole = " " not in names and (len(names) <= LONGEST_NAME or max(map(len, holder)) <= LONGEST_NAME)
    # Most members are numbers, true, false or null: they are passed over in C.
    for name, value in compress(holder.items(), map(_TELLING.__contains__, map(type, holder.values()))):
        if isinstance(value, str):
            if not value or (name in _IDENTIFIERS and len(value) <= LONGEST_IDENTIFIER and " " not in value):
                continue
            if (id(holder), name) in known or (name in echoed and _is_response(holder)):
                continue
            if not _names_something(name, value):
                found.append(Slot(_part(where, name), OTHER, holder, name))
        else:
            if not value or name in _SPELLING or (name in echoed and _is_response(holder)):
                continue
            if (id(holder), name) in known:
                continue
            if isinstance(value, dict):
                whole &= _look(cast("Answer", value), (where, name), known, found, echoed)
                continue
            items = cast("list[object]", value)
            kinds = set(map(type, items))
            if str in kinds or list in kinds:
                # A list of texts is shown as JSON.
                found.append(Slot(_part(where, name), "arguments", holder, name))
            elif dict in kinds:
                for position, item in enumerate(items):
                    if isinstance(item, dict):
                        members = cast("Answer", item)
                        place = ((where, name), members.get("index", position))
                        whole &= _look(members, place, known, found, echoed)
    return whole


def _is_response(holder: Answer) -> bool:
    return holder.get("object") == "response"


def _part(where: _Path | None, name: str) -> str:
    names = [name]
    while where is not None:
        where, inner = where
        names.append(str(inner))
    return "/".join((OTHER, *reversed(names)))


def _names_something(name: str, text: str) -> bool:
    if any(space in text for space in _SPACES):
        return False
    if name in _IDENTIFIERS or name.endswith("_id"):
        return len(text) <= LONGEST_IDENTIFIER
    if name in _BINARY:
        return text.isascii()
    # A `data:` URL contains the image or sound itself.
    return name == "url" and text.startswith(("data:image/", "data:audio/", "data:video/"))
