"""The parts of nats-py that `lasting_client.py`, `connection.py` and `sockets.py` override or count on, as they were
reviewed.

When one of these fails, nats-py has changed underneath: read the new code, check what those files say about it,
run `test_connection.py` and `test_events.py`, then record the new digest.
"""

# asyncio's reader keeps its buffer private; watching it is what this file is for.
# pyright: reportPrivateUsage=false

import asyncio
import hashlib
import inspect
from operator import attrgetter
from types import SimpleNamespace

import pytest
from nats.aio.client import Client
from nats.aio.transport import TcpTransport

REVIEWED: dict[str, str] = {
    "Client.connect": "a333807745c3c9fb",
    "Client._close": "9a92d3aca1b2c1fd",
    "Client._select_next_server": "c278559f8a14659c",
    "Client._connect_to_server": "1356d992325fde9f",
    "Client._process_err": "ceb70f44e38fa728",
    "Client._process_op_err": "d4257cb1203cdbcb",
    "Client._attempt_reconnect": "2bbc96e0f2f765ec",
    "Client._process_connect_init": "e1ed2da075c82ab0",
    "Client._process_info": "ecca7bb931308fff",
    "Client._send_command": "ed57e8e86389cf94",
    "Client._flush_pending": "317c8d7ef54b90b7",
    "Client._send_ping": "d57b2f820443afb4",
    "Client._flusher": "43957ffb357d6d94",
    "Client._read_loop": "b44b9401f436dd0e",
    "Client._ping_interval": "e681a6d18db6add9",
    "TcpTransport": "516720a2ccd8c051",
}


@pytest.mark.parametrize("name", REVIEWED)
def test_nats_py_is_as_it_was_reviewed(name: str) -> None:
    part = attrgetter(name)(SimpleNamespace(Client=Client, TcpTransport=TcpTransport))
    assert hashlib.sha256(inspect.getsource(part).encode()).hexdigest()[:16] == REVIEWED[name]


async def test_asyncio_still_keeps_what_a_reader_read_ahead_where_the_handover_takes_it() -> None:
    reader = asyncio.StreamReader()
    reader.feed_data(b"ahead")
    assert bytes(reader._buffer) == b"ahead"  # type: ignore[attr-defined]
