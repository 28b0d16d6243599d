"""Passes the rest of one stream on, from one engine that is asked for it."""

import asyncio
import time
from array import array
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Protocol

from pointsman_apis.usage import UsageTail
from pointsman_edge.sending.moving_on import DRAINED, FAILED, TIMEOUT
from pointsman_edge.sending.unasked_usage import Rewriting
from pointsman_frontend.adapters.engine_connection import AnswerCutOff, EndpointFailed
from pointsman_frontend.adapters.relay import Answering, ResponseWriter
from pointsman_frontend.domain.resuming.joining import NotTheRest, Rest
from pointsman_frontend.domain.resuming.question import Question
from pointsman_frontend.domain.resuming.resuming import Resuming

CUT_OFF: Final = "cut_off"
_USAGE_S: Final = 1.0
"""Seconds within which the usage must follow the end of the text, in the form `text`."""

Ask = Callable[[Question], Awaitable[Answering]]
"""Sends a question; raises EndpointFailed."""


AskTokens = Callable[[Mapping[str, object]], Awaitable["array[int]"]]
"""Has the engine cut a text or a chat into tokens; raises EndpointFailed."""


class Begins(Protocol):
    """Called once with the question that an engine has begun to answer."""

    def __call__(self, question: Question) -> None: ...


async def learn_tokens(resuming: Resuming, kind: str, ask: AskTokens) -> None:
    """Have an engine of this kind cut what the client has into tokens, where the answer can go on from them. Raises
    EndpointFailed where it can't go on otherwise."""
    try:
        told = {name: await ask(body) for name, body in resuming.to_tokenize(kind).items()}
    except EndpointFailed:
        if resuming.must_be_tokenized:
            raise
    else:
        if told:
            resuming.take_tokens(told)


class RestOfStream:
    """Passes the rest of one stream on, from one engine."""

    def __init__(
        self,
        resuming: Resuming,
        client: ResponseWriter,
        usage: UsageTail,
        rewriting: Rewriting | None,
        prompt_tokens: int,
        *,
        quiet_s: float,
    ) -> None:
        """`usage`: reads the stream that the client gets. `prompt_tokens`: as the stages counted them. `quiet_s`: the
        engine is left when nothing for the client has come for so long."""
        self._resuming = resuming
        self._client = client
        self._usage = usage
        self._rewriting = rewriting
        self._prompt_tokens = prompt_tokens
        self._quiet_s = quiet_s

    async def relay_to_end(self, ask: Ask, begins: Begins, longest: int | None) -> None:
        """Have the choices that haven't ended continued, one after the other, and end the stream. Raises EndpointFailed
        and CantContinue."""
        resuming = self._resuming
        # The bytes of an event that broke off aren't part of the next one.
        self._usage.follow_bytes(b"\n\n")
        for index in resuming.open_choices():
            ended = False
            while not ended:
                question = resuming.next_question(index, longest)
                if question is None and resuming.is_open_ended:
                    raise EndpointFailed(FAILED, "its longest sequence is shorter than the answer so far")
                if question is None:
                    await self._write(self._counted(resuming.pass_rest(resuming.end_choice(index))))
                    break
                ended = await self._relay_choice(question, await ask(question), begins)
                begins = _nothing if ended else begins
        end = self._counted(resuming.end_stream(self._prompt_tokens))
        await self._client.end(end if self._rewriting is None else self._rewriting.rewrite_bytes(end))

    async def _relay_choice(self, question: Question, engine: Answering, begins: Begins) -> bool:
        """Whether the choice has ended; otherwise the engine is asked again, from an earlier point."""
        resuming = self._resuming
        rest = resuming.read_rest(question)
        begun = False
        heard_at = time.monotonic()
        try:
            while not (rest.finished or rest.ended):
                data = await engine.read()
                if not data:
                    break
                joined = rest.join(data)
                if not joined and time.monotonic() - heard_at > self._quiet_s:
                    raise EndpointFailed(TIMEOUT, "says nothing")
                if joined:
                    heard_at = time.monotonic()
                    if not begun:
                        begun = True
                        resuming.begin_rest(question)
                        begins(question)
                    await self._write(self._counted(resuming.pass_rest(joined)))
            if question.form == "text":
                await _read_usage(rest, engine)
        except NotTheRest as failure:
            if not begun and failure.again and resuming.change_start(differs=failure.differs):
                return False
            raise EndpointFailed(FAILED, str(failure)) from None
        except AnswerCutOff as cut:
            if not rest.finished:
                drained = cut.outcome == DRAINED
                raise EndpointFailed(CUT_OFF if begun and not drained else cut.outcome, str(cut)) from None
        finally:
            resuming.end_question(question, rest)
        if not rest.finished:
            raise EndpointFailed(CUT_OFF if begun else FAILED, "the stream ended early")
        return True

    def _counted(self, data: bytes) -> bytes:
        self._usage.follow_bytes(data)
        return data

    async def _write(self, data: bytes) -> None:
        await self._client.write(data if self._rewriting is None else self._rewriting.rewrite_bytes(data))


async def _read_usage(rest: Rest, engine: Answering) -> None:
    """The engine's count of the tokens comes last, if it comes."""
    try:
        async with asyncio.timeout(_USAGE_S):
            while not rest.ended and (data := await engine.read()):
                rest.join(data)
    except TimeoutError:
        return


def _nothing(question: Question) -> None:
    del question
