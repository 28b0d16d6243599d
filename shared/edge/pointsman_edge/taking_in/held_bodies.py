"""The bodies of open requests, for the stages that ask for them."""

from typing import Final

from pointsman_contracts.content import Content, ContentEdited, ContentEdits, ContentQuery, PromptTokens
from pointsman_edge.taking_in.edited_body import edited_body


class HeldBody:
    """The body of one request."""

    __slots__ = ("current", "original", "request_id", "tokens")

    def __init__(self, request_id: str, body: bytes) -> None:
        self.request_id: Final = request_id
        self.original: Final = body
        """As the client sent it."""
        self.current = body
        """What the engine gets, before the decision's own edits."""
        self.tokens: PromptTokens | None = None
        """Its prompt's, when somebody has counted them who was to tell, and nobody has changed the body since."""


class HeldBodies:
    """Holds each body from when it is complete until the request's last stage has answered."""

    def __init__(self) -> None:
        self._held: dict[str, HeldBody] = {}

    def hold(self, request_id: str, body: bytes) -> HeldBody:
        """A request is complete."""
        held = self._held[request_id] = HeldBody(request_id, body)
        return held

    def let_go(self, held: HeldBody) -> None:
        """Nothing asks for it any more."""
        # A client may have used the id again meanwhile.
        if self._held.get(held.request_id) is held:
            del self._held[held.request_id]

    def answer(self, query: ContentQuery) -> bytes:
        """A stage asks: the answer as it travels."""
        held = self._held.get(query.request_id)
        if held is None:
            return Content(request_id=query.request_id, held=False).encode()
        body = held.original if query.original else held.current
        if query.at_most is None:
            return b"\n".join((Content(request_id=query.request_id).encode(), body))
        part = memoryview(body)[query.offset : query.offset + query.at_most]
        return b"\n".join((Content(request_id=query.request_id, size=len(body)).encode(), part))

    def take_tokens(self, tokens: PromptTokens) -> None:
        """The tokens of a prompt."""
        held = self._held.get(tokens.request_id)
        if held is not None and held.current is held.original:
            held.tokens = tokens

    def edit(self, edits: ContentEdits) -> bytes:
        """A stage changes what the engine gets: the answer as it travels."""
        held = self._held.get(edits.request_id)
        if held is None:
            return ContentEdited(request_id=edits.request_id, held=False).encode()
        held.current = edited_body(held.original, edits.edits, None)
        # They spell the prompt as it was, with what was to be taken out of it.
        held.tokens = None
        return ContentEdited(request_id=edits.request_id).encode()
