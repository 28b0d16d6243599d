"""Thoughts that go on at another engine: it answers as a completion, whose text has thoughts, the mark behind them and
the answer in one piece."""

from typing import Final, NamedTuple, cast

from pointsman_apis.texts import Answer


class Thoughts(NamedTuple):
    """How the text of a completion is split."""

    end: str
    """The mark behind the thoughts, e.g. `</think>`."""
    names: tuple[str, ...]
    """Members of a chat's delta in which the client gets thoughts."""
    open: bool
    """The client has a part of them. False: it has all, and the mark."""


def first_mark(end: str) -> str:
    """The mark before the thoughts, which some models write themselves, by the one behind them."""
    return end.replace("/", "", 1)


class ThoughtSplitter:
    """Splits the text of one completion."""

    def __init__(self, thoughts: Thoughts, *, anew: bool) -> None:
        """`anew`: the completion begins with the first token of the answer."""
        self.names: Final = thoughts.names
        self.open = thoughts.open
        """The mark hasn't come."""
        self._end: Final = thoughts.end
        self._first: tuple[str, ...] = ()
        """Marks that may come before any other text."""
        if anew and thoughts.open:
            self._first = (first_mark(thoughts.end),)
        elif anew:
            # The client has no thought: the model ended its thoughts at once.
            self._first = (first_mark(thoughts.end) + thoughts.end, thoughts.end)
        self._held: Answer | None = None

    def complete_marks(self, members: Answer) -> Answer | None:
        """The choice of the next event, joined with those before it that ended within a mark; without the mark that
        comes first. None while the text ends within a mark."""
        if self._held is not None:
            members, self._held = _joined(self._held, members), None
        text = members.get("text")
        if not isinstance(text, str) or not (self.open or self._first):
            return members
        if not members.get("finish_reason") and (
            any(_begins(text, mark) for mark in self._first) or (self.open and ends_within(text, self._end))
        ):
            self._held = members
            return None
        if text and self._first:
            mark = next((mark for mark in self._first if text.startswith(mark)), "")
            members, self._first = members | {"text": text.removeprefix(mark)}, ()
        return members

    def split_text(self, text: str) -> tuple[str, str]:
        """A thought, and a part of the answer."""
        if not self.open:
            return "", text
        thought, mark, answer = text.partition(self._end)
        self.open = not mark
        return thought, answer


def ends_within(text: str, mark: str) -> bool:
    """Whether the text ends with a beginning of the mark."""
    return any(text.endswith(mark[:length]) for length in range(1, len(mark)))


def _begins(text: str, mark: str) -> bool:
    return 0 < len(text) < len(mark) and mark.startswith(text)


def _joined(before: Answer, after: Answer) -> Answer:
    """One choice of two."""
    whole = before | after
    for name in ("text", "token_ids"):
        first, second = before.get(name), after.get(name)
        if isinstance(first, str) and isinstance(second, str):
            whole[name] = first + second
        elif isinstance(first, list) and isinstance(second, list):
            whole[name] = [*cast("list[object]", first), *cast("list[object]", second)]
    if before.get("prompt_token_ids") is not None:
        whole["prompt_token_ids"] = before["prompt_token_ids"]
    told, more = before.get("logprobs"), after.get("logprobs")
    if isinstance(told, dict) and isinstance(more, dict):
        lists = cast("Answer", told), cast("Answer", more)
        whole["logprobs"] = {
            name: [*cast("list[object]", lists[0][name]), *cast("list[object]", lists[1].get(name) or [])]
            for name in lists[0]
            if isinstance(lists[0][name], list)
        }
    elif isinstance(told, dict) and more is None:
        whole["logprobs"] = cast("Answer", told)
    return whole
