"""Makes a history that any model may have made one that strict providers take.

Anthropic and Bedrock want: the user begins; turns alternate; ids are unique and of certain characters; the results of
calls come at the beginning of the very next turn, one for each. vLLM, and clients whose user interrupts a call, keep
none of that.
"""

from collections.abc import Sequence
from typing import Final, Literal, Protocol, TypeVar

from pointsman_providers.call_ids import CallIds

B = TypeVar("B")
Role = Literal["user", "assistant", "system"]
BEGINNING: Final = "(The assistant begins.)"
"""The user's first turn, where a history has none."""
NO_RESULT: Final = "(This call has no result.)"


class HistoryBlocks(Protocol[B]):
    """The blocks of one format, as far as histories are mended."""

    def call_id(self, block: B) -> str | None:
        """The id of a tool call; None for another block."""
        ...

    def result_id(self, block: B) -> str | None:
        """The id of the call whose result this is; None for another block."""
        ...

    def with_id(self, block: B, identity: str) -> B:
        """The call or result with another id."""
        ...

    def text(self, text: str) -> B: ...

    def result(self, identity: str, text: str) -> B: ...

    def as_text(self, block: B) -> Sequence[B]:
        """A result without a call, as something that the user says."""
        ...


def mended(
    turns: Sequence[tuple[Role, Sequence[B]]], form: HistoryBlocks[B], ids: CallIds
) -> list[tuple[Role, list[B]]]:
    """The turns as Anthropic and Bedrock take them; turns without blocks are left out. Empty if no turn has any."""
    found = merged([turn for turn in turns if turn[1]])
    if found and found[0][0] == "assistant":
        found.insert(0, ("user", [form.text(BEGINNING)]))
    taken: set[str] = set()
    calls: list[tuple[str, str]] = []
    done: list[tuple[Role, list[B]]] = []
    for role, blocks in found:
        if role != "user" and calls:
            # Nothing may stand between a call and its result.
            done.append(("user", _answered([], calls, form)))
            calls = []
        if role == "user":
            done.append((role, _answered(blocks, calls, form)))
            calls = []
        else:
            done.append((role, blocks))
        if role == "assistant":
            calls = _renamed_calls(blocks, form, ids, taken)
    if calls:
        done.append(("user", _answered([], calls, form)))
    return done


def merged(turns: Sequence[tuple[Role, Sequence[B]]]) -> list[tuple[Role, list[B]]]:
    """Neighbouring turns of one role as one."""
    found: list[tuple[Role, list[B]]] = []
    for role, blocks in turns:
        if found and found[-1][0] == role:
            found[-1][1].extend(blocks)
        else:
            found.append((role, list(blocks)))
    return found


def _renamed_calls(blocks: list[B], form: HistoryBlocks[B], ids: CallIds, taken: set[str]) -> list[tuple[str, str]]:
    """Give the calls of a turn their ids; returns the old and the new ones, in order."""
    calls: list[tuple[str, str]] = []
    for number, block in enumerate(blocks):
        given = form.call_id(block)
        if given is None:
            continue
        identity = ids.fit_id(given, taken)
        taken.add(identity)
        calls.append((given, identity))
        if identity != given:
            blocks[number] = form.with_id(block, identity)
    return calls


def _answered(blocks: Sequence[B], calls: list[tuple[str, str]], form: HistoryBlocks[B]) -> list[B]:
    """A user's turn after these calls: each has its result at the beginning."""
    results: list[B] = []
    others: list[B] = []
    for block in blocks:
        given = form.result_id(block)
        if given is None:
            others.append(block)
            continue
        call = next((call for call in calls if call[0] == given), None)
        if call is None:
            others.extend(form.as_text(block))
            continue
        calls.remove(call)
        results.append(block if call[1] == given else form.with_id(block, call[1]))
    missing = [form.result(identity, NO_RESULT) for _, identity in calls]
    return [*results, *missing, *others]
