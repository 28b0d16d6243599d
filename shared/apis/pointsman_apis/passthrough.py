"""APIs of which the gateway knows little: routed, and passed on as they are."""

from typing import Final

from pointsman_apis.api import Api, View
from pointsman_apis.chat import choice_slots
from pointsman_apis.choices import ChoicesEnd, finish_reasons
from pointsman_apis.fields import Document


def _view(document: Document, media: list[str]) -> View:
    del document, media
    return View(prompts=[])


UNKNOWN: Final = Api(
    name="",
    path="",
    fields={},
    view=_view,
    slots=choice_slots,
    end=lambda: ChoicesEnd({}),
    ends=finish_reasons,
    complete=frozenset(),
)
"""Stands for a path without an API: errors are worded as OpenAI words them."""
