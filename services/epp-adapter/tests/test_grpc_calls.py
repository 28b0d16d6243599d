"""gRPC's framing: messages out of bytes, and what of them has been taken."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pointsman_epp_adapter.adapters.grpc_call import Call, CallFailed, Status


class FakePeer:
    """A connection that records its calls."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.taken_bytes = 0
        self.full = False

    def send(self, call: Call, data: bytes) -> bool:
        self.sent.append(data)
        return not self.full

    def return_credit(self, stream_id: int, size: int) -> None:
        self.taken_bytes += size

    def backed_up(self, stream_id: int) -> bool:
        return self.full

    async def wait_for_progress(self) -> None:
        await asyncio.sleep(0)


def framed(message: bytes) -> bytes:
    return b"\0" + len(message).to_bytes(4, "big") + message


@settings(max_examples=40)
@given(messages=st.lists(st.binary(max_size=40), max_size=6), size=st.integers(1, 30))
def test_messages_are_read_as_they_were_sent_however_they_are_cut(messages: list[bytes], size: int) -> None:
    async def read_all() -> tuple[list[bytes], FakePeer]:
        peer = FakePeer()
        call = Call(1, peer, {})
        data = b"".join(map(framed, messages))
        for start in range(0, len(data), size):
            call.receive_body(data[start : start + size], end=False)
        call.receive_body(b"", end=True)
        read: list[bytes] = []
        while (message := await call.read()) is not None:
            read.append(message)
        return read, peer

    read, peer = asyncio.run(read_all())
    assert read == messages
    # A client that gets no window update may send no more, in the end.
    assert peer.taken_bytes == sum(len(framed(message)) for message in messages)


async def test_unread_messages_arent_taken_until_the_call_ends() -> None:
    peer = FakePeer()
    call = Call(1, peer, {})
    call.receive_body(framed(b"one"), end=False)
    call.receive_body(framed(b"two"), end=False)
    assert (len(call.unread), peer.taken_bytes) == (2, 0)
    call.stop_reading()
    assert peer.taken_bytes == 2 * len(framed(b"one"))


@pytest.mark.parametrize(
    ("data", "status"),
    [(b"\1\0\0\0\1x", Status.UNIMPLEMENTED), (b"\0\xff\0\0\0", Status.RESOURCE_EXHAUSTED)],
    ids=["compressed", "too long"],
)
async def test_an_unreadable_message_fails_the_call_after_the_readable_ones(data: bytes, status: Status) -> None:
    call = Call(1, FakePeer(), {})
    call.receive_body(framed(b"one") + data, end=False)
    assert await call.read() == b"one"
    with pytest.raises(CallFailed) as failed:
        await call.read()
    assert failed.value.status is status


async def test_a_write_waits_while_the_client_takes_nothing() -> None:
    peer = FakePeer()
    call = Call(1, peer, {})
    peer.full = True
    writing = asyncio.ensure_future(call.write(b"one"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert (peer.sent, writing.done()) == ([framed(b"one")], False)
    peer.full = False
    await writing
    call.lose_client()
    await call.write(b"two")
    assert len(peer.sent) == 1
