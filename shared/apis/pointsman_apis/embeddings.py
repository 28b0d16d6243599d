"""`/v1/embeddings`. Each input is a text or a list of token ids."""

from collections.abc import Iterator
from typing import Final

from pointsman_apis import fields as f
from pointsman_apis.api import Api, View
from pointsman_apis.choices import ChoicesEnd
from pointsman_apis.fields import Document
from pointsman_apis.texts import Answer, no_slots

_WHOLE: Final = "data"


def _view(document: Document, media: list[str]) -> View:
    del media
    return View(prompts=f.texts_or_tokens(document, "input"))


def _ends(document: Answer) -> Iterator[str]:
    if document.get("data"):
        yield _WHOLE


EMBEDDINGS: Final = Api(
    name="embeddings",
    path="/v1/embeddings",
    fields={
        "model": f.TEXT,
        "input": f.TEXT_OR_LIST,
        "encoding_format": f.TEXT,
        "dimensions": f.POSITIVE,
        "user": f.TEXT,
    },
    view=_view,
    in_prompt=frozenset({"input"}),
    generates=False,
    keeps_prefix=False,
    slots=no_slots,
    end=lambda: ChoicesEnd({}),
    ends=_ends,
    complete=frozenset({_WHOLE}),
)
