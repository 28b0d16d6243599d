"""Renders a prompt whose template has a loop over the messages; the loop writes only what the conversation adds.

Each pass of the loop (`message_loop`) is noted with the messages that it looked at and the state of the namespaces
behind it. The next prompt's loop begins at the first pass that read anything which isn't the same now.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, cast

from jinja2 import Environment, Template, Undefined
from jinja2.utils import Namespace

from pointsman_models.tokenization.body_values import count_same
from pointsman_models.tokenization.message_loop import AT, STEPS

_END: Final = 2**62
"""More than the messages of any conversation: a pass that looks at the last one, or at their number."""
_COMPARED: Final = (str, int, bool, type(None))
"""Types whose equal values are written alike."""
States = tuple[dict[str, object], ...]


class LoopRecord(NamedTuple):
    """The loop of one prompt."""

    template: Template
    messages: list[object]
    given: tuple[object, ...]
    """Values from outside that a pass may read, and the state of the namespaces among them before the first pass."""
    begun: States
    lists: tuple[object, ...]
    """Lists from outside; a pass may read their items."""
    seen: list[int]
    """For each pass, how many messages it and those before it looked at."""
    states: list[States]
    """The state of the namespaces behind each pass."""
    ends: list[int]
    """Where the text of each pass ends, from the first pass on."""
    begin: int
    """Where the text of the first pass begins in the prompt."""
    text: str
    """The prompt."""


class LoopRun:
    """Renders one prompt by a template with a rewritten loop."""

    def __init__(self, template: Template, environment: Environment, former: LoopRecord | None) -> None:
        """`former`: of the conversation's last prompt."""
        self.record: LoopRecord | None = None
        """This prompt's; None where the loop didn't run."""
        self.passes = 0
        """Passes whose text was known."""
        self._template: Final = template
        self._environment: Final = environment
        self._former: Final = former if former is not None and former.template is template else None
        self._chunks: Final[list[str]] = []
        self._looked = 0

    def render(self, names: dict[str, object]) -> str:
        """The text. Raises what the template raises."""
        chunks = self._chunks
        for chunk in self._template.generate({**names, STEPS: self._steps, AT: self._item_of}):
            chunks.append(chunk)
        text = "".join(chunks)
        if self.record is not None:
            self.record = self.record._replace(text=text)
        return text

    def _steps(
        self, over: Sequence[object], given: tuple[object, ...], lists: tuple[object, ...]
    ) -> Iterator[tuple[object, "_Step"]]:
        """The messages, each with its place, from the first one on whose text isn't known."""
        messages = list(over)
        spaces = [each for each in given if isinstance(each, Namespace)]
        begun = _read_states(spaces)
        seen, states, ends = list[int](), list[States](), list[int]()
        begin = sum(map(len, self._chunks))
        former = self._former
        if former is not None and _are_same(former.given, given) and _are_same_states(former.begun, begun):
            start = bisect_right(former.seen, _count_common(former, messages, lists))
            if start:
                seen, states, ends = former.seen[:start], former.states[:start], former.ends[:start]
                self._chunks.append(former.text[former.begin : former.begin + ends[-1]])
                for space, state in zip(spaces, states[-1], strict=True):
                    _attributes_of(space).update(state)
                self.passes = start
        at, most = len(self._chunks), seen[-1] if seen else 0
        for index in range(self.passes, len(messages)):
            self._looked = index + 1
            yield messages[index], _Step(self, index, messages)
            most = max(most, self._looked)
            end = (ends[-1] if ends else 0) + sum(map(len, self._chunks[at:]))
            at = len(self._chunks)
            seen.append(most)
            ends.append(end)
            states.append(_read_states(spaces))
        self.record = LoopRecord(
            self._template, messages, given, begun, lists, seen=seen, states=states, ends=ends, begin=begin, text=""
        )

    def look_at(self, messages: int) -> None:
        """Note that the pass looked at so many messages."""
        self._looked = max(self._looked, messages)

    def look_at_end(self) -> None:
        """Note that the pass depends on the end of the conversation."""
        self._looked = _END

    def make_undefined(self, hint: str) -> Undefined:
        """The value of a loop's attribute that has none."""
        return self._environment.undefined(hint)

    def _item_of(self, held: object, key: object) -> tuple[object]:
        """One item of a list from outside, alone in a tuple: the rewritten expression takes it out again."""
        if isinstance(held, list):
            items = cast("list[object]", held)
            if type(key) is int and 0 <= key < len(items):
                self.look_at(key + 1)
            else:
                self.look_at_end()
        return (self._environment.getitem(held, key),)


class _Step:
    """The place of a message in the loop: the attributes of jinja2's loop that a pass may read."""

    def __init__(self, run: LoopRun, index: int, messages: list[object]) -> None:
        self.index0 = index
        self.index = index + 1
        self.first = index == 0
        self._run = run
        self._messages = messages

    @property
    def last(self) -> bool:
        """Whether no message follows."""
        last = self.index == len(self._messages)
        if last:
            self._run.look_at_end()
        else:
            self._run.look_at(self.index + 1)
        return last

    @property
    def length(self) -> int:
        """How many messages there are."""
        self._run.look_at_end()
        return len(self._messages)

    @property
    def revindex(self) -> int:
        """How many messages there are from this one on."""
        return self.length - self.index0

    @property
    def revindex0(self) -> int:
        """How many messages follow."""
        return self.length - self.index

    @property
    def previtem(self) -> object:
        """The message before."""
        return self._messages[self.index0 - 1] if self.index0 else self._run.make_undefined("there is no previous item")

    @property
    def nextitem(self) -> object:
        """The message behind."""
        return self._run.make_undefined("there is no next item") if self.last else self._messages[self.index]


def _read_states(spaces: list[Namespace]) -> States:
    return tuple([dict(_attributes_of(space)) for space in spaces])


def _attributes_of(space: Namespace) -> dict[str, object]:
    # A namespace shows each attribute by its name alone.
    return cast("dict[str, object]", object.__getattribute__(space, "_Namespace__attrs"))


def _are_same(former: tuple[object, ...], now: tuple[object, ...]) -> bool:
    return all(map(_is_same, former, now))


def _are_same_states(former: States, now: States) -> bool:
    return len(former) == len(now) and all(
        list(one) == list(other) and all(map(_is_same, one.values(), other.values()))
        for one, other in zip(former, now, strict=True)
    )


def _is_same(former: object, now: object) -> bool:
    """Whether a template can't tell the values apart. Namespaces are compared by their states."""
    if former is now:
        return True
    if type(former) is not type(now):
        return False
    return isinstance(now, Undefined | Namespace) or (type(now) in _COMPARED and former == now)


def _count_common(former: LoopRecord, messages: list[object], lists: tuple[object, ...]) -> int:
    """How many items the loop's messages and each list from outside begin with alike; 0 where anything else differs."""
    common = count_same(former.messages, messages)
    for one, other in zip(former.lists, lists, strict=True):
        if isinstance(one, list) and isinstance(other, list):
            common = min(common, count_same(cast("list[object]", one), cast("list[object]", other)))
        elif not _is_same(cast("object", one), other):
            return 0
    return common
