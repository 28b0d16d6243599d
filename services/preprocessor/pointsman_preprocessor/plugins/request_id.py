"""`request-id`: the engine's logs carry the gateway's request id."""

from collections.abc import Mapping
from typing import cast

from pydantic import Field

from pointsman_core.plugins import Params, Plugin
from pointsman_preprocessor.domain.processing import Incoming, RequestProcessor
from pointsman_preprocessor.plugins.model_to_header import HEADER_NAME


class RequestIdParams(Params):
    """Where it goes."""

    header: str = Field(default="X-Request-Id", pattern=HEADER_NAME)


class RequestId(RequestProcessor):
    """Sets the header to the request's id."""

    type_name = "request-id"
    params_type = RequestIdParams

    def __init__(self, name: str, params: Params, others: Mapping[str, Plugin]) -> None:
        super().__init__(name, params, others)
        self._header = cast("RequestIdParams", params).header

    def process(self, incoming: Incoming) -> None:
        incoming.set_header(self._header, incoming.envelope.request_id)
