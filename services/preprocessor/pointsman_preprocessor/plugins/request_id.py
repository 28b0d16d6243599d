"""`request-id`: the engine's logs carry the gateway's request id."""

from pydantic import Field, field_validator

from pointsman_core.header_names import HEADER_NAME, REQUEST_ID, settable
from pointsman_plugins.plugin import Params
from pointsman_plugins.preprocessing import Incoming, RequestProcessor


class RequestIdParams(Params):
    """Where it goes."""

    header: str = Field(default="X-Request-Id", pattern=HEADER_NAME)
    """`X-Request-Id` is in every request that an edge sends on, with or without this processor."""

    @field_validator("header")
    @classmethod
    def _can_be_set(cls, value: str) -> str:
        return value if value.lower() == REQUEST_ID else settable(value)


class RequestId(RequestProcessor[RequestIdParams]):
    """Sets the header to the request's id."""

    type_name = "request-id"

    def setup(self) -> None:
        header = self.params.header
        self._header = None if header.lower() == REQUEST_ID else header

    def process(self, incoming: Incoming) -> None:
        if self._header is not None:
            incoming.set_header(self._header, incoming.envelope.request_id)
