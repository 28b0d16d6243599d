"""Which engine has each session of agents, and how much of its last turn the next one goes on with.

A session's name is what a client says: two clients may have one name, background requests carry the session's name with
prompts of their own, and a conversation is compacted now and then. So the prompt decides: a turn continues an earlier
one if its blocks begin with those of most of that one's prompt. A session remembers a few conversations, with a few of
each one's block hashes. Block hashes are chained, so that one hash stands for all of the prompt before it.

Nothing here decides: it explains decisions once they are made, and counts. Times are monotonic seconds.
"""

from collections import OrderedDict
from typing import Final, NamedTuple

import numpy as np
from msgspec import Struct

from pointsman_contracts.scheduling import ReservationChange
from pointsman_plugins.scheduling.arrays import Blocks
from pointsman_plugins.scheduling.request import RequestKey

MOST_SESSIONS: Final = 10_000
"""Sessions remembered, of all pools; the one without a request for longest is forgotten."""
MOST_OPEN: Final = 10_000
"""Turns whose end is awaited; the oldest is given up."""
CONVERSATIONS: Final = 4
"""Conversations of one session; the one that went on longest ago is forgotten."""
_MARKS: Final = 16
"""Block hashes remembered of a conversation: the last one, and others at equal distances before it."""
_SAME: Final = 0.5
"""A prompt continues a conversation if it begins with more than this share of that one's prompt."""


class TurnSeen(NamedTuple):
    """A turn beside the one that it continues."""

    number: int
    """How many requests of the session are known, with this one."""
    continues: bool
    continued_tokens: int
    """In common with an earlier prompt, at least."""
    last_worker: str | None = None
    """The engine of the conversation; None for a turn that continues none."""
    last_boot_id: str = ""
    gap_s: float | None = None
    """None where the last turn hasn't ended."""
    kept_for_s: float | None = None
    half_back_s: float | None = None
    again: bool = False
    """An engine was chosen for this turn before."""


class ReturnForecast(NamedTuple):
    """The prediction at the end of a turn of when the next one comes."""

    kept_for_s: float | None
    """How long the prefix is worth its place in the cache; None where nothing predicts it."""
    half_back_s: float | None
    """Within which half of the sessions come back; None where that is unknown, or fewer do."""


NO_FORECAST: Final = ReturnForecast(None, None)


class EngineChange(NamedTuple):
    """A turn that another engine answered than the one that was chosen."""

    seen: TurnSeen
    last_worker: str
    worker: str


class _Conversation(Struct, gc=False):
    worker: str
    boot_id: str
    block_tokens: int = 0
    blocks: int = 0
    """Blocks in the prompt of the last turn that was answered; 0 before."""
    marks: bytes = b""
    """Hashes of its last block and of others before it, the last one first."""
    open: int = 0
    """Turns that haven't ended."""
    ended_at: float | None = None
    forecast: ReturnForecast = NO_FORECAST

    def count_shared(self, blocks: Blocks, block_tokens: int) -> int:
        """Blocks that a prompt begins with as this one's did, at least."""
        if block_tokens != self.block_tokens or not self.blocks:
            return 0
        place, step, count = self.blocks - 1, _step(self.blocks), len(blocks)
        for mark in np.frombuffer(self.marks, dtype="<u8").tolist():
            if place < count and blocks.item(place) == mark:
                return place + 1
            place -= step
        return 0


class _Session(Struct, gc=False):
    requests: int = 0
    conversations: list[_Conversation] = []
    """The one that went on last comes last."""


class _OpenTurn(Struct, gc=False):
    seen: TurnSeen
    conversation: _Conversation
    worker: str
    """As chosen last."""
    flow: str
    mine: bool
    """This scheduler decided."""
    block_tokens: int
    blocks: int
    marks: bytes


class SessionTurns:
    """The sessions of all pools."""

    def __init__(self, most: int = MOST_SESSIONS) -> None:
        self._most: Final = most
        self._sessions: Final[OrderedDict[tuple[str, str, str], _Session]] = OrderedDict()
        """By pool, flow and name."""
        self._open: Final[OrderedDict[RequestKey, _OpenTurn]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sessions)

    def begin_turn(self, pool: str, change: ReservationChange, came_at: float, *, mine: bool = True) -> TurnSeen:
        """A request of a session goes to an engine. `change`: its reservation, with a session; `came_at`: when it came
        to its scheduler; `mine`: this one decided. A request that is decided again, or is named again, is the same
        turn."""
        key = change.edge, change.request_id
        former = self._open.get(key)
        if former is not None:
            return self._choose_again(former, change)
        session = self._find_session(pool, change)
        session.requests += 1
        seen, conversation = self._find_turn(session, change, came_at)
        conversation.worker, conversation.boot_id = change.worker, change.boot_id
        conversation.open += 1
        blocks = np.frombuffer(change.blocks, dtype="<u8")
        marks = blocks[:: -_step(len(blocks))].tobytes() if len(blocks) else b""
        self._open[key] = _OpenTurn(
            seen=seen,
            conversation=conversation,
            worker=change.worker,
            flow=change.flow or "",
            mine=mine,
            block_tokens=change.block_tokens,
            blocks=len(blocks),
            marks=marks,
        )
        while len(self._open) > MOST_OPEN:
            _close(self._open.popitem(last=False)[1])
        return seen

    def find_open(self, request: RequestKey) -> TurnSeen | None:
        """The turn that a request is, while it hasn't ended."""
        turn = self._open.get(request)
        return None if turn is None else turn.seen

    def find_prefix(self, request: RequestKey) -> tuple[int, str] | None:
        """The last block of an open turn's prompt, and its flow; None for a prompt without blocks."""
        turn = self._open.get(request)
        return None if turn is None or not turn.marks else (int.from_bytes(turn.marks[:8], "little"), turn.flow)

    def end_turn(
        self,
        request: RequestKey,
        worker: str | None,
        boot_id: str,
        now: float,
        forecast: ReturnForecast,
        *,
        answered: bool,
    ) -> EngineChange | None:
        """A request is over. `worker`: the engine that answered, or was tried last, and the boot of it; `answered`: it
        computed the prompt. Returns the change where another engine than the chosen one answered a turn of this
        scheduler's that continues an earlier one."""
        turn = self._open.pop(request, None)
        if turn is None:
            return None
        conversation = turn.conversation
        _close(turn)
        if not answered or worker is None:
            return None
        last = conversation.worker
        conversation.worker, conversation.boot_id = worker, boot_id
        conversation.ended_at, conversation.forecast = now, forecast
        if turn.blocks:
            conversation.block_tokens, conversation.blocks = turn.block_tokens, turn.blocks
            conversation.marks = turn.marks
        # Of turns at once, another one may have moved the conversation since this one was sent.
        if not turn.mine or not turn.seen.continues or worker in (last, turn.worker):
            return None
        return EngineChange(turn.seen, last, worker)

    def _choose_again(self, turn: _OpenTurn, change: ReservationChange) -> TurnSeen:
        conversation = turn.conversation
        if turn.seen.continues:
            # An earlier choice didn't answer: the conversation leaves that engine now.
            turn.seen = turn.seen._replace(
                last_worker=conversation.worker, last_boot_id=conversation.boot_id, again=True
            )
        conversation.worker, conversation.boot_id = change.worker, change.boot_id
        turn.worker = change.worker
        return turn.seen

    def _find_session(self, pool: str, change: ReservationChange) -> _Session:
        key = pool, change.flow or "", change.session or ""
        session = self._sessions.get(key)
        if session is None:
            session = self._sessions[key] = _Session()
            if len(self._sessions) > self._most:
                self._sessions.popitem(last=False)
        else:
            self._sessions.move_to_end(key)
        return session

    @staticmethod
    def _find_turn(session: _Session, change: ReservationChange, came_at: float) -> tuple[TurnSeen, _Conversation]:
        blocks = np.frombuffer(change.blocks, dtype="<u8")
        best: _Conversation | None = None
        shared = 0
        for each in reversed(session.conversations):
            count = each.count_shared(blocks, change.block_tokens)
            if count > shared:
                best, shared = each, count
        tokens = min(change.prompt_tokens, shared * change.block_tokens)
        if best is None or shared <= _SAME * best.blocks:
            conversation = _Conversation(change.worker, change.boot_id)
            # One that was never answered is no loss.
            kept = [each for each in session.conversations if each.open or each.blocks]
            session.conversations = [*kept[1 - CONVERSATIONS :], conversation]
            return TurnSeen(session.requests, continues=False, continued_tokens=tokens), conversation
        if session.conversations[-1] is not best:
            session.conversations.remove(best)
            session.conversations.append(best)
        seen = TurnSeen(
            session.requests,
            continues=True,
            continued_tokens=tokens,
            last_worker=best.worker,
            last_boot_id=best.boot_id,
            gap_s=None if best.open or best.ended_at is None else max(0.0, came_at - best.ended_at),
            kept_for_s=best.forecast.kept_for_s,
            half_back_s=best.forecast.half_back_s,
        )
        return seen, best


def _close(turn: _OpenTurn) -> None:
    turn.conversation.open -= 1


def _step(blocks: int) -> int:
    return -(-blocks // _MARKS)
