"""Receives the KV events that an engine publishes over ZeroMQ, and requests the missed ones.

vLLM and SGLang: PUB sends `[topic, number, payload]`; ROUTER answers `[b"", first number]` with `[b"", number,
payload]`…, recent vLLM with `[b"", topic, number, payload]`…, and ends with number -1. Numbers are 8 bytes, big-endian.
"""

import asyncio
from collections.abc import Callable
from typing import Final

import zmq
import zmq.asyncio
from zmq.utils.monitor import parse_monitor_message

from pointsman_runtime.bus.cancellation import end_all
from pointsman_runtime.telling.logs import Log
from pointsman_worker_agent.domain.kv_endpoints import KvEndpoints
from pointsman_worker_agent.domain.kv_sequence import END, BatchSequence, Next

REPLAY_TIMEOUT_S: Final = 5.0
"""Silence of a replay after which it is given up: a publisher looks at requests between two batches."""
REPLAY_AGAIN_S: Final = 30.0
"""Seconds after a failed replay during which gaps are only counted."""
MISSING_AFTER_S: Final = 10.0
DRAINED_AFTER_S: Final = 0.05
"""By then the batches that came before a break are taken. ZeroMQ connects again after 0.1 s."""

_log = Log("kv-events")


class KvSubscriber:
    """One rank's publisher.

    `take` gets each batch once and in order; `lost` is called when batches are lost for good, `reset` when the engine
    restarted and its earlier messages are void, `broke` when the connection to the publisher broke: a new process may
    answer next.
    """

    def __init__(
        self,
        context: zmq.asyncio.Context,
        endpoints: KvEndpoints,
        take: Callable[[bytes], None],
        lost: Callable[[], None],
        reset: Callable[[], None],
        broke: Callable[[], None],
    ) -> None:
        self.sequence: Final = BatchSequence()
        self.heard = 0
        """Batches taken."""
        self.connected = False
        """Whether the publisher was ever connected. A replay socket alone doesn't count: vLLM connects to an endpoint
        that names a host instead of listening on it."""
        self._context: Final = context
        self._endpoints: Final = endpoints
        self._take: Final = take
        self._lost: Final = lost
        self._reset: Final = reset
        self._broke: Final = broke
        self._quiet = True
        """No batch came since the connection broke, or since the engine's life began."""
        self._no_replay_until = 0.0

    def begin_life(self) -> None:
        """The engine began a new life. Batches that came since the connection broke are the new one's."""
        if self._quiet:
            self.sequence.restart()
        self._quiet = True

    async def run(self) -> None:
        """Listen until cancelled. A publisher that isn't there yet is waited for."""
        socket = self._context.socket(zmq.SUB)
        missing = asyncio.get_running_loop().call_later(MISSING_AFTER_S, self._say_missing)
        following = asyncio.create_task(self._follow_connection(socket))
        try:
            socket.set_hwm(0)
            socket.subscribe(self._endpoints.topic)
            socket.connect(self._endpoints.live)
            await self._replay()
            while True:
                frames = await socket.recv_multipart()
                if len(frames) != 3 or len(frames[1]) != 8:
                    _log.warning("kv_frames_malformed", endpoint=self._endpoints.live, frames=len(frames))
                    continue
                self.connected = True
                await self._hear(int.from_bytes(frames[1], "big"), frames[2])
        finally:
            missing.cancel()
            await end_all([following])
            socket.close(linger=0)

    async def _follow_connection(self, socket: zmq.asyncio.Socket) -> None:
        loop = asyncio.get_running_loop()
        monitor = socket.get_monitor_socket(zmq.Event.HANDSHAKE_SUCCEEDED | zmq.Event.DISCONNECTED)
        try:
            while True:
                event = parse_monitor_message(await monitor.recv_multipart())["event"]
                if event == zmq.Event.HANDSHAKE_SUCCEEDED:
                    self.connected = True
                else:
                    loop.call_later(DRAINED_AFTER_S, self._broken)
        finally:
            socket.disable_monitor()
            monitor.close(linger=0)

    def _broken(self) -> None:
        self._quiet = True
        self._broke()

    async def _hear(self, number: int, payload: bytes) -> None:
        verdict = self.sequence.place_live_batch(number)
        if verdict is Next.SKIP:
            return
        if verdict is Next.RESET:
            _log.info("kv_publisher_restarted", endpoint=self._endpoints.live)
            self._reset()
            verdict = Next.TAKE if number == 0 else Next.REPLAY
        if verdict is Next.REPLAY:
            await self._replay()
            if number < self.sequence.wanted:
                self.sequence.place_live_batch(number)  # the replay brought it as well
                return
        missing = self.sequence.taken(number)
        if missing:
            self._say_lost(missing)
        self._handle(payload)

    async def _replay(self) -> None:
        """Ask for everything from the next number on."""
        loop = asyncio.get_running_loop()
        if self._endpoints.replay is None or loop.time() < self._no_replay_until:
            return
        socket = self._context.socket(zmq.DEALER)
        try:
            socket.connect(self._endpoints.replay)
            request = [b"", self.sequence.wanted.to_bytes(8, "big")]
            await socket.send_multipart(request)  # pyright: ignore[reportUnknownMemberType] - its Sequence has no type
            while True:
                async with asyncio.timeout(REPLAY_TIMEOUT_S):
                    frames = await socket.recv_multipart()
                if len(frames) not in (3, 4) or len(frames[-2]) != 8:
                    continue
                number = int.from_bytes(frames[-2], "big")
                if number == END:
                    return
                before = self.sequence.missed
                if self.sequence.accept_replayed(number):
                    if self.sequence.missed > before:
                        self._say_lost(self.sequence.missed - before)
                    self._handle(frames[-1])
        except TimeoutError:
            self._no_replay_until = loop.time() + REPLAY_AGAIN_S
            _log.warning("kv_replay_unanswered", endpoint=self._endpoints.replay, waited_s=REPLAY_TIMEOUT_S)
        finally:
            socket.close(linger=0)

    def _handle(self, payload: bytes) -> None:
        self.heard += 1
        self._quiet = False
        self._take(payload)

    def _say_lost(self, batches: int) -> None:
        _log.warning("kv_events_lost", endpoint=self._endpoints.live, batches=batches)
        self._lost()

    def _say_missing(self) -> None:
        if not self.connected:
            _log.error("kv_publisher_missing", endpoint=self._endpoints.live, waited_s=MISSING_AFTER_S)
