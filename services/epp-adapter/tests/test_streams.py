"""One stream of Envoy's, read without a connection."""

# ext_proc's messages have no type information.
# pyright: reportUnknownMemberType=false, reportAttributeAccessIssue=false, reportUnknownArgumentType=false

import asyncio

import pytest

from pointsman_epp_adapter.adapters.ext_proc_messages import ProcessingRequest
from pointsman_epp_adapter.adapters.grpc_call import Call
from pointsman_epp_adapter.adapters.stream import EnvoyGone, Stream
from pointsman_epp_adapter.domain.envoys_answers import AnsweredByEnvoy


class FakePeer:
    """A connection that takes everything."""

    def send(self, call: Call, data: bytes) -> bool:
        return True

    def return_credit(self, stream_id: int, size: int) -> None:
        pass

    def backed_up(self, stream_id: int) -> bool:
        return False

    async def wait_for_progress(self) -> None:
        pass


def answer() -> bytes:
    message = ProcessingRequest()
    message.response_headers.headers.headers.add(key=":status", raw_value=b"413")
    data = message.SerializeToString()
    return b"\0" + len(data).to_bytes(4, "big") + data


@pytest.mark.parametrize(
    ("said", "expected"), [(answer(), AnsweredByEnvoy), (b"", EnvoyGone)], ids=["an answer", "its end"]
)
async def test_a_message_of_envoys_before_work_that_takes_no_time_ends_it_and_no_later_one(
    said: bytes, expected: type[Exception]
) -> None:
    call = Call(1, FakePeer(), {})
    call.receive_body(said, end=True)
    begun: list[str] = []

    async def work() -> None:
        begun.append("work")  # as an edge does that decides alone

    with pytest.raises(expected):
        await Stream(call).listen_while(work())
    await asyncio.sleep(0)
    assert begun == []
