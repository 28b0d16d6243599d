"""An engine's error, kept while other endpoints are asked: the client gets it when none of them does better."""

import asyncio
import re
from typing import Final

from pointsman_apis.errors import SERVER_ERROR
from pointsman_core.refusal import Refusal
from pointsman_edge.sending.missing_path import MISSING as NO_PATH
from pointsman_edge.sending.missing_path import says_nothing
from pointsman_edge.sending.moving_on import DENIED, FAILED, MISSING, failure_of, names_model
from pointsman_frontend.adapters.engine_connection import AnswerCutOff, EndpointFailed, EngineConnection
from pointsman_frontend.adapters.http_turn import Headers
from pointsman_frontend.adapters.relay import WHOLE

_BAD_REQUEST: Final = 400
_NOT_FOUND: Final = 404
_NAMES_RANK: Final = re.compile(rb"data_parallel_rank|dp_rank")
"""In the error of vLLM and of SGLang for a rank that an engine doesn't have."""
WITHIN_S: Final = 1.0
"""Seconds that an error's body may take while another endpoint could answer."""


class KeptAnswer:
    """A whole answer, as `Answering`."""

    __slots__ = ("_unread", "complete", "headers", "status")

    def __init__(self, status: int, headers: Headers, body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.complete = True
        self._unread = body

    async def read(self) -> bytes:
        """The next bytes of the body as they arrived, b"" at its end."""
        unread, self._unread = self._unread, b""
        return unread


class AnsweredError(EndpointFailed):
    """An engine answered with an error, or without a word, and another endpoint may do better. `answer`: None if it
    didn't come whole. `detail`: in words for an operator."""

    def __init__(self, outcome: str, status: int, answer: KeptAnswer | None, detail: str = "") -> None:
        super().__init__(outcome, detail or f"answered {status}", status)
        self.answer = answer


async def checked(
    engine: EngineConnection, *, others: bool, ranked: bool = False, doubted: bool = False
) -> KeptAnswer | EngineConnection:
    """The answer of an engine whose status is an error's. `others`: whether another endpoint can be asked. Raises
    AnsweredError for one that says more about the engine than about the request. `ranked`: the request asked for a
    data-parallel rank. `doubted`: another endpoint is asked for a second opinion."""
    status = engine.status
    if ranked and status == _BAD_REQUEST:
        return await _checked_rank(engine)
    outcome = failure_of(status)
    if outcome is None and doubted:
        outcome = DENIED
    if outcome is None and status not in NO_PATH:
        return engine
    body = await whole_answer(engine, WITHIN_S if others else None)
    answer = None if body is None else KeptAnswer(status, engine.headers, body)
    if outcome is None and body is not None and (says_nothing(body) or (status == _NOT_FOUND and names_model(body))):
        outcome = MISSING
    if outcome is None and answer is not None:
        return answer
    raise AnsweredError(outcome or MISSING, status, answer)


async def _checked_rank(engine: EngineConnection) -> KeptAnswer:
    """The answer of an engine that found a request wrong which asked for one of its data-parallel ranks. Raises
    EndpointFailed where the rank is what was wrong: the client hasn't chosen it."""
    body = await whole_answer(engine, None)
    if body is None or _NAMES_RANK.search(body) is not None:
        raise EndpointFailed(FAILED, f"answered {engine.status} to the data-parallel rank that it was asked for")
    return KeptAnswer(engine.status, engine.headers, body)


async def whole_answer(engine: EngineConnection, within_s: float | None, most: int = WHOLE) -> bytes | None:
    """The body; None if it is longer than `most` bytes, late, or cut off."""
    pieces: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(within_s):
            while data := await engine.read():
                pieces.append(data)
                size += len(data)
                if size > most:
                    return None
    except (TimeoutError, AnswerCutOff):
        return None
    return b"".join(pieces)


def error_of(failure: EndpointFailed) -> KeptAnswer | None:
    """The engine's own error of a failed attempt, if it has one that a client can have."""
    return failure.answer if isinstance(failure, AnsweredError) else None


def unanswered(last: EndpointFailed | None, tried: int) -> Refusal:
    """The client's error where none of the endpoints tried has one of its own."""
    engine, engines = ("The engine", "") if tried == 1 else ("", f"None of the {tried} engines tried")
    if last is not None and (last.outcome == "timeout" or last.status == 504):
        message = f"{engine} did not answer in time." if engine else f"{engines} answered in time."
        return Refusal(504, message, type=SERVER_ERROR, code="engine_timeout")
    if last is not None and last.status == 503:
        message = f"{engine} could not take the request." if engine else f"{engines} could take the request."
        pause_s = last.retry_after_s or 1.0
        return Refusal(503, message, type=SERVER_ERROR, code="engine_unavailable", retry_after_s=pause_s)
    message = f"{engine} could not be reached, or broke off." if engine else f"{engines} could be reached and answered."
    return Refusal(502, message, type=SERVER_ERROR, code="engine_failed")
