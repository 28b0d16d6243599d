"""The end of a request, as domain code and plugins say it. Handlers turn it into a `Rejection` for the edge."""


class Refusal(Exception):
    """The request ends here. `message` is for the client: what was wrong and what would be right, never prompt text.

    `status` is 400 to 599; `type` and `code` are OpenAI's error type and code; `param` names the field at fault.
    `detail` is for operators, where `message` has too little for them, or somebody else's words, which may quote the
    prompt.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str = "invalid_request_error",  # noqa: A002 - OpenAI's name
        code: str | None = None,
        param: str | None = None,
        retry_after_s: float | None = None,
        dropped_reason: str | None = None,
        detail: str | None = None,
    ) -> None:
        super().__init__(detail or message)
        self.status = status
        self.message = message
        self.type = type
        self.code = code
        self.param = param
        self.retry_after_s = retry_after_s
        self.dropped_reason = dropped_reason
        self.detail = detail or message

    @property
    def told_code(self) -> str:
        """What records know the error by: its code, or its type where it has none."""
        return self.code or self.type
