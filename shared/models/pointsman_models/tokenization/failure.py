"""Why a prompt can't be tokenized as its engine will."""


class NotTokenized(Exception):
    """`reason` is a word for a counter; `detail` is for operators and never quotes the request."""

    def __init__(self, reason: str, detail: str, *, failed: bool = False) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail
        self.failed = failed
        """Whether something is wrong; otherwise only the engine can know the tokens of such prompts."""
