"""`/v1/embeddings`. Each input is a text, a list of token ids, or what engines for texts and pictures take besides:
a conversation (vLLM's chat embeddings), or objects with a text and media (SGLang, Jina)."""

from collections.abc import Iterator
from typing import Final

from pydantic import JsonValue

from pointsman_apis import fields as f
from pointsman_apis.api import Api, View
from pointsman_apis.choices import ChoicesEnd
from pointsman_apis.content_parts import MEDIA, read_messages
from pointsman_apis.fields import Document
from pointsman_apis.texts import Answer, no_slots

_WHOLE: Final = "data"


def _view(document: Document, media: list[str]) -> View:
    given = document.get("input")
    if given is None and document.get("messages") is not None:
        return View(messages=read_messages(document, media))
    items = given if isinstance(given, list) else []
    if any(type(item) is dict for item in items):
        return View(prompts=[_item(item, f"input[{position}]", media) for position, item in enumerate(items)])
    return View(prompts=f.texts_or_tokens(document, "input"))


def _item(item: JsonValue, where: str, media: list[str]) -> str | list[int]:
    """The text of one input; its media are added to `media`. Raises Refusal 400."""
    if isinstance(item, str):
        return item
    if not isinstance(item, dict):
        raise f.wrong_type(where, "a string or an object", item)
    text = item.get("text")
    if text is not None and not isinstance(text, str):
        raise f.wrong_type(f"{where}.text", f.TEXT.words, text)
    media.extend(MEDIA[name] for name in MEDIA if item.get(name) is not None)
    return text or ""


def _ends(document: Answer) -> Iterator[str]:
    if document.get("data"):
        yield _WHOLE


EMBEDDINGS: Final = Api(
    name="embeddings",
    path="/v1/embeddings",
    fields={
        "model": f.TEXT,
        "input": f.TEXT_OR_LIST,
        "messages": f.OBJECTS,
        "encoding_format": f.TEXT,
        "dimensions": f.POSITIVE,
        "user": f.TEXT,
    },
    view=_view,
    in_prompt=frozenset({"input", "messages"}),
    generates=False,
    keeps_prefix=False,
    slots=no_slots,
    end=lambda: ChoicesEnd({}),
    ends=_ends,
    complete=frozenset({_WHOLE}),
)
