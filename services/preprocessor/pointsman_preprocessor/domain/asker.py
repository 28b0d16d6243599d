"""Identifies the sender of a request without a body, for an edge that lists models."""

from typing import Final

import orjson

from pointsman_apis.api import View
from pointsman_apis.models import MODELS
from pointsman_apis.passthrough import UNKNOWN
from pointsman_apis.requests import StructuredBody
from pointsman_contracts.identity import IDENTITY, Identity
from pointsman_contracts.journey import PreprocessRequest
from pointsman_contracts.reply import Answer
from pointsman_core.permission import allowed_models
from pointsman_plugins.preprocessing import Incoming
from pointsman_preprocessor.domain.request_headers import read_headers

ASKS_WHO: Final = MODELS
"""Path of a request without a body: an edge asks which models its sender may use."""


def asker(request: PreprocessRequest) -> Incoming:
    """A request with nothing but its headers. Raises Refusal for invalid headers."""
    return Incoming(
        request,
        StructuredBody(
            raw=b"", document={}, api=UNKNOWN, view=View(prompts=[]), model="", readable={}, max_output_tokens=None
        ),
        read_headers(request.headers),
    )


def allowed_models_answer(incoming: Incoming, stage: str) -> Answer:
    """The answer `{"models": …, "identity": …}`: names and patterns that the sender may use, null for all; and its
    identity, null without authentication."""
    allowed = allowed_models(incoming.attributes)
    return Answer(
        request_id=incoming.envelope.request_id,
        attempt=incoming.envelope.attempt,
        stage=stage,
        answer_headers=tuple(incoming.answer_headers.values()),
        identity=Identity.from_attributes(incoming.attributes),
        body=orjson.dumps(
            {
                "models": None if allowed is None else list(allowed),
                "identity": incoming.attributes.get(IDENTITY),
            }
        ),
    )
