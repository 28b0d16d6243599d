import socket

import pytest

from pointsman_testing import NatsServer, Processes, eventually


def _reachable(server: NatsServer) -> bool:
    port = int(server.url.rpartition(":")[2])
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1):
            return True
    except OSError:
        return False


def test_a_killed_server_comes_back_on_the_same_address(own_nats_server: NatsServer) -> None:
    before = own_nats_server.url
    own_nats_server.kill()
    assert not _reachable(own_nats_server)
    own_nats_server.start()
    assert own_nats_server.url == before
    assert _reachable(own_nats_server)


async def test_eventually_returns_what_the_condition_returned() -> None:
    answers = iter([0, None, "here"])
    assert await eventually(lambda: next(answers)) == "here"


async def test_eventually_names_the_last_failure_when_time_is_up() -> None:
    async def never() -> bool:
        raise AssertionError("still red")

    with pytest.raises(AssertionError, match="not true within") as caught:
        await eventually(never, timeout=0.01)
    assert str(caught.value.__cause__) == "still red"


def test_a_stopped_process_is_gone_after_end_all(processes: Processes) -> None:
    child = processes.start_command(["/bin/sleep", "60"])
    child.pause()
    processes.end_all()
    assert child.returncode == -9
