"""Content by claim check: a stage that needs the text of a request asks the edge that holds it.

Facts travel through the stages; content goes from the edge to the stage that asks, and nowhere else.
"""

from typing import ClassVar

from pointsman_contracts.journey import BodyEdit
from pointsman_contracts.message import Address, Blob, Message, Part, always


class ContentQuery(Message, frozen=True, kw_only=True):
    """Asks an edge for the body of a request that it holds. Sent by stages that need the text; answered with
    `Content`."""

    address: ClassVar[Address] = Address("ctl", "edge", "content", route=("edge",))

    request_id: str
    original: bool = always(False)
    """As the client sent it, without `ContentEdits`."""
    offset: int = always(0)
    """Bytes of the body to leave out."""
    at_most: int | None = None
    """Bytes of the body that the answer may have; None: all of them, in one message."""


class Content(Message, frozen=True, kw_only=True):
    """The answer to `ContentQuery`.

    On the wire: this document on one line, a newline, then the raw body.
    """

    address: ClassVar[Address] = Address("ctl", "edge", "content-answer", route=("inbox",))

    request_id: str
    held: bool = always(True)
    """False when the request isn't open at this edge (any more); no body follows then. An edge holds it until the last
    stage on the way back has answered, those after the last byte included."""
    size: int | None = None
    """Length of the whole body in bytes, where a part of it was asked for."""


class PromptTokens(Message, frozen=True, kw_only=True):
    """The tokens of a prompt, for the edge that holds its body, so that they are counted once. The edge passes them to
    engines of pools with `send_tokens`, and to clients that only asked for the route. Sent by the preprocessor before
    it forwards the journey; without a reply."""

    address: ClassVar[Address] = Address("ctl", "edge", "prompt-tokens", route=("edge",))

    request_id: str
    model: str
    """The model whose tokenizer it was."""
    ids: Blob
    """Token ids, little-endian, 4 bytes each."""


class LastBlock(Part, frozen=True, kw_only=True):
    """The end of a prompt, in blocks of one size."""

    block_tokens: int
    parent: Blob
    """The hash of the last full block, 8 bytes, without a model's salt; without a full block that of the beginning."""
    rest: Blob
    """The bytes of the prompt behind that block, 4 for each token."""


class PromptEnd(Message, frozen=True, kw_only=True):
    """The end of a prompt, for the edge that holds its body: with the answer that follows it, the edge can name the
    answer's blocks. Sent by the preprocessor before it forwards the journey, where a profile has the response processor
    `answer-blocks`; without a reply."""

    address: ClassVar[Address] = Address("ctl", "edge", "prompt-end", route=("edge",))

    request_id: str
    model: str
    """The model whose tokenizer it was, if it was one."""
    tokens: int
    """Length of the prompt."""
    exact: bool
    """Whether `LastBlock.rest` holds token ids; otherwise text."""
    ends: tuple[LastBlock, ...]
    """For each size of blocks that the request's pool may have."""


class ContentEdits(Message, frozen=True, kw_only=True):
    """Has an edge change a request's body before it goes to an engine or provider: `Journey.body` for values that may
    not travel through the stages. Sent by a stage before it lets the journey go on; answered with `ContentEdited`.

    Edits are applied to the original body. A later set replaces an earlier one: a request sent again is edited alike.
    """

    address: ClassVar[Address] = Address("ctl", "edge", "content-edits", route=("edge",))

    request_id: str
    stage: str
    edits: tuple[BodyEdit, ...]


class ContentEdited(Message, frozen=True, kw_only=True):
    """The answer to `ContentEdits`: what the request's engine gets is changed from now on."""

    address: ClassVar[Address] = Address("ctl", "edge", "content-edited", route=("inbox",))

    request_id: str
    held: bool = always(True)
    """`Content.held` of the body."""
