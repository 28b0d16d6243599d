"""Questions of an edge to the stages that review a response, and their verdicts.

A stage that a profile or `postprocessing` names is asked with request and reply on `pm.rpc.response.review.v1.<stage>`.
It gets as much of the answer as its declaration says (`AnswerUse`), and facts of the request; the request's own text
doesn't come along.
"""

from typing import Annotated, ClassVar, Final, Literal

from msgspec import Meta, field

from pointsman_contracts.journey import BodyEdit, HeaderEdit, StageReport, Target
from pointsman_contracts.message import Address, Blob, Message, Part, always
from pointsman_contracts.response import Usage


class AnswerText(Part, frozen=True, kw_only=True):
    """A text of the answer: the whole text, or the part that the client doesn't have yet."""

    part: str
    """Which text it is, e.g. `0/content`: a verdict names it so. The same one in every window."""
    kind: str
    """`text`, `reasoning`, `refusal`, `arguments` (of a tool call, JSON), `result` (what the answer repeats of a tool
    or a source), `error`, or `other` (a string that the API doesn't know as a text)."""
    text: str


class TextEdit(Part, frozen=True, kw_only=True):
    """The text that the client gets in place of one that a stage reviewed."""

    part: str
    text: str


class ResponseReview(Message, frozen=True, kw_only=True):
    """An answer, or a window of one, on its way to the client. Sent by an edge, read by a response stage."""

    address: ClassVar[Address] = Address("rpc", "response", "review", route=("stage",))

    request_id: str
    edge: str
    """Instance of the edge that asks."""
    stage: str
    policy: str | None = None
    revision: int
    """Configuration revision that the request keeps to its end."""
    deadline_ms: int
    """Unix milliseconds after which the edge no longer waits for the verdict."""
    mode: str
    """`buffer`: the whole answer, before the client has any of it. `window`: a piece of a stream, before the client has
    it. `after`: the client has everything."""
    number: int = always(1)
    """Counts what the stage is asked about this answer from 1."""
    last: bool = always(True)
    """Nothing follows."""
    api: str = always("")
    """The API of the request."""
    stream: bool = always(False)
    mirrored: bool = always(False)
    """The request says, by the header `x-mirrored-by`, that it is a mirror's copy of another one."""
    status: int
    """HTTP status of the answer; 499 when the client was gone before there was one."""
    outcome: str = always("answered")
    """`answered`, `rejected` (the gateway's own error), or in mode `after` as `ResponseCompleted.outcome`."""
    code: str | None = None
    """Code of the gateway's own error."""
    profile: str | None = None
    """None when the request ended before one was picked."""
    plan: str = always("")
    """The client's, as in `Identity.plan`; empty when no stage determined it."""
    model: str | None = None
    """The model that the client asked for, as far as it is known."""
    target: Target | None = None
    headers: dict[str, str] = field(default_factory=dict[str, str])
    """Headers of the answer, by lower-case name."""
    texts: tuple[AnswerText, ...] = always(())
    """For `content: text`."""
    body: Blob | None = None
    """For `content: body`: the answer as the client gets it, events of a stream included."""
    truncated: bool = always(False)
    """The answer is too large to be sent along: `texts` and `body` are missing."""
    usage: Usage | None = None
    """In mode `after`, if it was reported."""
    served: str | None = None
    """In mode `after`, as `ResponseCompleted.served`."""
    cost_nanos: int | None = None
    """In mode `after`, as `ResponseCompleted.cost_nanos`."""
    ttft_ms: float | None = None
    """In mode `after`, as `ResponseCompleted.ttft_ms`."""
    duration_ms: float | None = None
    """In mode `after`, as `ResponseCompleted.duration_ms`."""
    stages: tuple[StageReport, ...] = always(())
    """In mode `after`: what the stages before this one said, as in `ResponseCompleted.stages`; a stage that was asked
    in that mode too is `blocked` or `replaced` by what it would have done."""
    memo: str | None = None
    """The stage's memo from the way to the model."""
    makeshift: bool = always(False)
    """A cascade gave this answer for want of a better one: it isn't to be given to later requests."""


class Verdict(Message, frozen=True, kw_only=True):
    """A stage's verdict about a response, or a part of it. Sent by the stage to the inbox of the edge."""

    address: ClassVar[Address] = Address("rpc", "response", "verdict", route=("inbox",))

    kind: Literal["verdict"] = always("verdict")
    request_id: str
    action: Literal["pass", "replace", "block"] = always("pass")
    """`replace`: the client gets `texts`. `block`: the client gets neither this part nor any later one. In mode
    `after` only `note` counts."""
    texts: tuple[TextEdit, ...] = always(())
    """Texts that aren't named pass."""
    fields: tuple[BodyEdit, ...] = always(())
    """Fields of the top level of the answer's JSON to set, add or remove, unless it blocks; of a stream, in each event
    that leaves from now on. Every other field stays as it is."""
    headers: tuple[HeaderEdit, ...] = always(())
    """Changes of the answer's headers; they count while none is out: in the first window at the latest."""
    status: Annotated[int, Meta(ge=400, le=599)] = always(403)
    """For `block`, while no byte is out."""
    code: str = always("content_filter")
    """For `block`: OpenAI's error code."""
    message: str = always("The answer was withheld.")
    """For `block`: for the client. Never repeats the answer's text."""
    instance: str = always("")
    """Who answered, for the trail."""
    note: str | None = None
    """Why, in words without text of the answer; shown in `ResponseCompleted.stages` and `ResponseReviewed.stages`."""


NO_VERDICT: Final = b"{}"
"""The reply of a stage that fails on a response: the edge then needn't wait for the stage's time to pass."""
