"""Sends results to the URLs that items name."""

import asyncio
import random
import time
from typing import Final

import aiohttp

from pointsman_batch.domain.signing import signing_headers
from pointsman_contracts.work import WorkResult
from pointsman_core.config.work_queue import WorkQueue
from pointsman_hosting import outbound
from pointsman_runtime.configuring.secret_references import ReferenceMissing, read_secret
from pointsman_runtime.telling.logs import Log

TRIES: Final = 5
TIMEOUT_S: Final = 10.0
"""For one try, from the connection to the status; the answer's content isn't read."""
_WAIT_S: Final = 1.0
_AGAIN: Final = frozenset({408, 425, 429})

_log = Log("callbacks")


class Callbacks:
    """Sessions to allowed and to private addresses. Redirects aren't followed."""

    def __init__(self) -> None:
        self._sessions: Final[dict[bool, aiohttp.ClientSession]] = {}

    async def send_result(self, url: str, name: str, queue: WorkQueue, result: WorkResult) -> str:
        """Have the receiver accept a result of the queue of this name; returns `accepted`, `refused`, `unreachable`, or
        `unsigned`, where a secret is missing. Each try has the same `Idempotency-Key`. Takes at most `TRIES` times
        `TIMEOUT_S` and some seconds; never raises for a receiver."""
        message_id = f"{name}/{result.sequence}"
        headers = {
            "content-type": "application/json",
            "idempotency-key": message_id,
            "user-agent": "pointsman-batch",
        }
        body, problem = result.encode(), ""
        try:
            secrets = [read_secret(reference) for reference in queue.secrets]
        except ReferenceMissing as missing:
            # A receiver that checks signatures would refuse it, and one that doesn't is to learn nothing else.
            _log.error("callback_unsigned", queue=name, sequence=result.sequence, problem=str(missing))
            return "unsigned"
        for number in range(TRIES):
            if number:
                await asyncio.sleep(_WAIT_S * 2 ** (number - 1) * random.uniform(0.5, 1.0))
            if secrets:
                headers |= signing_headers(secrets, message_id, int(time.time()), body)
            try:
                async with (
                    asyncio.timeout(TIMEOUT_S),
                    self._session(private=queue.private).post(
                        url, data=body, headers=headers, allow_redirects=False
                    ) as answer,
                ):
                    status = answer.status
                    # Whatever follows isn't waited for.
                    answer.close()
            except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
                problem = outbound.reason_of(error)
                continue
            if 200 <= status < 300:
                return "accepted"
            problem = f"status {status}"
            if status < 500 and status not in _AGAIN:
                _log.warning("callback_refused", queue=name, sequence=result.sequence, problem=problem)
                return "refused"
        _log.warning("callback_unreachable", queue=name, sequence=result.sequence, problem=problem)
        return "unreachable"

    async def close(self) -> None:
        """Close every connection."""
        for session in self._sessions.values():
            await session.close()

    def _session(self, *, private: bool) -> aiohttp.ClientSession:
        session = self._sessions.get(private)
        if session is None:
            session = self._sessions[private] = aiohttp.ClientSession(
                connector=outbound.connector(private=private, limit=64), cookie_jar=aiohttp.DummyCookieJar()
            )
        return session
