"""The end of a request, raised by domain code and plugins. Handlers turn it into a `Rejection` for the edge."""

from collections.abc import Mapping
from typing import Final

_OF_STATUS: Final[dict[int, tuple[str, str]]] = {
    401: ("invalid_request_error", "unauthorized"),
    403: ("permission_error", "forbidden"),
    404: ("invalid_request_error", "not_found"),
    413: ("invalid_request_error", "body_too_large"),
    429: ("rate_limit_error", "rate_limit_exceeded"),
    500: ("server_error", "internal_error"),
    502: ("server_error", "bad_gateway"),
    503: ("server_error", "unavailable"),
    504: ("server_error", "timeout"),
}
"""Type and code of a refusal that names neither. Of 401 as OpenAI words it."""


class Refusal(Exception):
    """The request ends here. `message` is for the client: the problem and its remedy, never prompt text.

    `status` is 400 to 599; `type` and `code` are OpenAI's error type and code, by default those of the status; `param`
    names the field at fault; `more` has further members of the error, as a provider worded them. `detail` is for
    operators: more than `message` has, or another system's words, which may quote the prompt.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str | None = None,  # noqa: A002 - OpenAI's name
        code: str | None = None,
        param: str | None = None,
        retry_after_s: float | None = None,
        dropped_reason: str | None = None,
        detail: str | None = None,
        more: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__(detail or message)
        self.status = status
        self.message = message
        usual = _OF_STATUS.get(status, ("server_error" if status >= 500 else "invalid_request_error", None))
        self.type = type or usual[0]
        self.code = code or (usual[1] if type is None else None)
        self.param = param
        self.retry_after_s = retry_after_s
        self.dropped_reason = dropped_reason
        self.detail = detail or message
        self.more = more

    @property
    def told_code(self) -> str:
        """The error's name in records: its code, or its type when it has none."""
        return self.code or self.type
