"""Results that one request leaves to the next one of its conversation, which shares most of its objects.

A result is found by the identity of its input, so it costs no comparison. Inputs are parts of bodies, which nothing
changes, and are kept with their results: no other object can take the place of one.
"""

from collections.abc import Callable, Sequence
from typing import Final, Generic, TypeVar, cast

from pointsman_models.tokenization.body_values import Json, count_same
from pointsman_models.tokenization.loop_run import LoopRecord
from pointsman_models.tokenization.segments import EncodedText

T = TypeVar("T")


class ResultsByInput(Generic[T]):
    """The results of one function for the inputs of the last request."""

    def __init__(self) -> None:
        self._known: tuple[Sequence[object], list[T]] = ((), [])

    def map_inputs(self, inputs: Sequence[object], make: Callable[[object], T]) -> list[T]:
        """The result for each input: a known one for those that the last request began with too."""
        known, results = self._known
        same = count_same(known, inputs)
        results = [*results[:same], *map(make, inputs[same:])]
        self._known = inputs, results
        # The caller may change its list.
        return [*results]

    def map_input(self, value: object, make: Callable[[object], T]) -> T:
        """The result for one input; all others are forgotten."""
        return self.map_inputs((value,), make)[0]


class KnownValues:
    """One conversation's, for one tokenizer. Threads may use it at once: each writes whole results."""

    def __init__(self, *, kept: bool = False) -> None:
        self.kept: Final = kept
        """Whether a later request may find these values."""
        self.loop: LoopRecord | None = None
        """How the template wrote the last prompt."""
        self.encoded: EncodedText | None = None
        """The tokens of the last prompt."""
        self.rendered_whole = True
        """Whether the template wrote the last prompt as a whole."""
        self.first: Final = ResultsByInput[list[Json]]()
        """What a body says beside its messages, as the first messages of the chat."""
        self.messages: Final = ResultsByInput[list[Json]]()
        """Messages of a body as those of a chat."""
        self.joined: tuple[list[Json], list[Json], list[int]] = [], [], []
        """Items of a body, the messages of a chat that they are joined to, and how many these are behind each item."""
        self._told: Final[dict[tuple[str, bool], ResultsByInput[Json]]] = {}
        self.named: Final = ResultsByInput[Json]()
        """These with each name of the model's reasoning."""
        self.tools: Final = ResultsByInput[list[Json] | None]()
        """Tools of a body as those of a chat."""
        self.told_tools: Final = ResultsByInput[list[Json] | None]()
        """Tools of a chat as templates get them."""

    def find_told(self, content_format: str, calls_as_given: bool) -> ResultsByInput[Json]:
        """Messages of a chat as templates get them that take contents in this format."""
        return self._told.setdefault((content_format, calls_as_given), ResultsByInput[Json]())


def find_known_values(memo: dict[int, tuple[object, object]] | None, tokenizer: object) -> KnownValues:
    """A tokenizer's values in the memo of a conversation (`EarlierBody.memo`); new ones without a memo."""
    if memo is None:
        return KnownValues()
    _, known = memo.setdefault(id(tokenizer), (tokenizer, KnownValues(kept=True)))
    return cast("KnownValues", known)
