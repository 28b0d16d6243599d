"""Host names, looked up by the system's resolver aside from the requests that need them, and connections to where they
lead.

The event loop's own lookups wait behind each other for a few threads, and uvloop tries the addresses of a name one
after the other, each for as long as the kernel does (https://github.com/MagicStack/uvloop/issues/406).
"""

import asyncio
import contextlib
import ipaddress
import socket
import threading
import time
from collections.abc import Callable
from typing import Final

import aiohappyeyeballs
import msgspec

from pointsman_runtime.telling.logs import Log

Address = tuple[
    socket.AddressFamily,
    socket.SocketKind,
    int,
    str,
    tuple[str, int] | tuple[str, int, int, int] | tuple[int, bytes],
]
"""As `socket.getaddrinfo` returns it."""

FRESH_S: Final = 5.0
"""New connections use what was found so short a time ago. The resolver doesn't tell how long an address is good for."""
REFRESHED_S: Final = 15.0
"""How often the name of open connections is looked up."""
LEFT_AFTER_S: Final = 30.0
"""An address that lookups leave out for so long isn't the name's any more. Some names answer with a few of many
addresses, others each time."""
KEPT_S: Final = 120.0
"""How long addresses are used while the resolver fails. Later they may be another host's."""
PATIENCE_S: Final = 0.5
"""How long a lookup is waited for where addresses are known from before."""
_NEXT_AFTER_S: Final = 0.25
"""Until the next address is tried beside the one before (RFC 8305, 5)."""
_LATE_FOR_S: Final = 60.0
"""How long an address that another one had to stand in for is tried last."""
_AT_ONCE: Final = 32
"""Lookups that may be under way."""
_MOST: Final = 4096
"""Names; the one that was added first is dropped first."""
_GONE: Final = frozenset({socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME)})
"""The resolver has an answer: there is no such name, or it has no address. All other errors say nothing of the name."""

_log = Log("names")


class NamedAddress(msgspec.Struct, frozen=True):
    """Where a connection leads that was opened by a name."""

    host: str
    port: int
    address: str


class _Name:
    __slots__ = ("addresses", "asked_at", "failing", "found_at", "late", "lookup", "seen", "sure_until")

    def __init__(self) -> None:
        self.addresses: list[Address] = []
        """Empty before the first answer, and while the name is gone."""
        self.found_at = 0.0
        """When the resolver last had addresses; monotonic, as all times here."""
        self.asked_at = 0.0
        self.sure_until = 0.0
        self.seen: dict[str, float] = {}
        """When each address was last among them."""
        self.late: dict[str, float] = {}
        """Until when each address is tried last."""
        self.failing = False
        self.lookup: asyncio.Task[None] | None = None


class HostNames:
    """Names of one event loop."""

    def __init__(self) -> None:
        self._known: Final[dict[tuple[str, int], _Name]] = {}
        self._turns: Final = asyncio.Semaphore(_AT_ONCE)

    async def open_socket(self, host: str, port: int) -> socket.socket:
        """A socket that is connected to the first address that takes the connection. Raises OSError."""
        addresses = await self.find_addresses(host, port)
        try:
            found: socket.socket = await aiohappyeyeballs.start_connection(  # pyright: ignore[reportUnknownMemberType]
                addresses, happy_eyeballs_delay=_NEXT_AFTER_S, interleave=1
            )
        except BaseException:  # cancelled by the caller's limit, too
            self._entry_of(host, port).sure_until = 0.0
            raise
        self._note_reached(self._entry_of(host, port), addresses, found.getpeername()[0])
        return found

    async def find_addresses(self, host: str, port: int) -> list[Address]:
        """Addresses of a name, one at least, in the order in which to try them. Raises OSError (socket.gaierror)."""
        name, now = self._entry_of(host, port), time.monotonic()
        if now >= name.sure_until or not name.addresses:
            lookup = self._join_lookup(host, port)
            if not name.addresses or now - name.found_at > KEPT_S:
                await asyncio.shield(lookup)
            else:
                await asyncio.wait((lookup,), timeout=PATIENCE_S)
                if lookup.done() and not name.addresses:
                    await lookup  # raises: the name is gone
        late = name.late
        if late:
            return sorted(name.addresses, key=lambda each: late.get(str(each[4][0]), 0.0) > now)
        return name.addresses

    def refresh_name(self, host: str, port: int) -> None:
        """Look a name up whose connections are open, unless that was done lately."""
        if time.monotonic() - self._entry_of(host, port).asked_at >= REFRESHED_S:
            self._join_lookup(host, port)

    def is_former(self, named: NamedAddress) -> bool:
        """Whether the name leads elsewhere by now. A resolver that fails doesn't say so, nor a name that is gone."""
        name = self._known.get((named.host, named.port))
        if name is None or not name.addresses:
            return False
        return name.found_at - name.seen.get(named.address, name.found_at) > LEFT_AFTER_S

    def _entry_of(self, host: str, port: int) -> _Name:
        name = self._known.get((host, port))
        if name is None:
            if len(self._known) >= _MOST:
                del self._known[next(iter(self._known))]
            name = self._known[host, port] = _Name()
        return name

    def _join_lookup(self, host: str, port: int) -> "asyncio.Task[None]":
        """The lookup that is under way, or a new one."""
        name = self._entry_of(host, port)
        if name.lookup is None or name.lookup.done():
            name.asked_at = time.monotonic()
            name.lookup = asyncio.get_running_loop().create_task(self._ask_resolver(name, host, port))
            name.lookup.add_done_callback(_retrieve)
        return name.lookup

    async def _ask_resolver(self, name: _Name, host: str, port: int) -> None:
        try:
            async with self._turns:
                addresses = await _in_a_thread(host, port)
        except OSError as error:
            if not name.failing:
                name.failing = True
                _log.warning("name_not_resolved", host=host, reason=error.strerror or type(error).__name__)
            if error.errno in _GONE:
                name.addresses = []
            name.sure_until = 0.0
            raise
        now = time.monotonic()
        if name.failing:
            name.failing = False
            _log.info("name_resolved_again", host=host)
        name.addresses, name.found_at, name.sure_until = addresses, now, now + FRESH_S
        name.seen |= {str(each[4][0]): now for each in addresses}
        for address, at in list(name.seen.items()):
            if now - at > _LATE_FOR_S + LEFT_AFTER_S:
                # Its connections have been closed by then.
                del name.seen[address]
                name.late.pop(address, None)

    def _note_reached(self, name: _Name, addresses: list[Address], reached: str) -> None:
        """Those that were tried before the address that took the connection come last for a while."""
        if len(addresses) == 1:
            return
        until = time.monotonic() + _LATE_FOR_S
        name.late.pop(reached, None)
        for each in addresses:
            if each[4][0] == reached:
                break
            name.late[str(each[4][0])] = until


def is_name(host: str) -> bool:
    """Whether a host has to be looked up: it is no address."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return True
    return False


def _in_a_thread(host: str, port: int) -> "asyncio.Future[list[Address]]":
    """Ask the system's resolver in a thread that the process doesn't wait for at its end."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[list[Address]] = loop.create_future()

    def settle(settled: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(lambda: None if answer.done() else settled())

    def look_up() -> None:
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError as error:
            failure = _own_limit() or error
            settle(lambda: answer.set_exception(failure))
        except UnicodeError:
            settle(lambda: answer.set_exception(socket.gaierror(socket.EAI_NONAME, "not a host name")))
        else:
            settle(lambda: answer.set_result(found))

    threading.Thread(target=look_up, name="host-names", daemon=True).start()
    return answer


def _own_limit() -> OSError | None:
    """The error of a process that can open no socket: the resolver then says that the name can't be looked up, which
    isn't the name's failure."""
    try:
        socket.socket().close()
    except OSError as error:
        return error
    return None


def _retrieve(lookup: "asyncio.Task[None]") -> None:
    """A lookup that only connections asked for has no one that waits for its error."""
    if not lookup.cancelled():
        lookup.exception()
