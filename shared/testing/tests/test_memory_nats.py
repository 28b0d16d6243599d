"""The in-memory server matches subjects as the real one does."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman_runtime.bus.connection import Connection
from pointsman_runtime.bus.fan_out import matches
from pointsman_testing import NatsServer, eventually

tokens = st.sampled_from(["a", "b", "c"])
subjects = st.lists(tokens, min_size=1, max_size=4).map(".".join)
patterns = st.tuples(
    st.lists(tokens | st.just("*"), min_size=0, max_size=3), st.sampled_from([[], [">"], ["a"], ["*"]])
).map(lambda parts: ".".join([*parts[0], *parts[1]]))


@pytest.mark.parametrize(
    ("pattern", "subject", "expected"),
    [
        ("a.b", "a.b", True),
        ("a.*", "a.b", True),
        ("a.*", "a", False),
        ("a.*", "a.b.c", False),
        ("a.>", "a.b.c", True),
        ("a.>", "a", False),
        ("*.b", "a.b", True),
        (">", "a", True),
        ("a.b", "a", False),
    ],
)
def test_a_pattern_sees_what_it_should(pattern: str, subject: str, expected: bool) -> None:
    assert matches(pattern, subject) is expected


@given(st.lists(patterns.filter(bool), min_size=1, max_size=6), st.lists(subjects, min_size=1, max_size=6))
def test_it_agrees_with_the_real_server(nats_server: NatsServer, wanted: list[str], published: list[str]) -> None:
    async def run() -> None:
        connection = Connection([nats_server.url], name="test", echo=True)
        connection.open()
        got: list[tuple[str, str]] = []
        for pattern in dict.fromkeys(wanted):
            connection.subscribe(pattern, lambda subject, _r, _h, _p, pattern=pattern: got.append((pattern, subject)))
        await eventually(lambda: connection.connected)
        for subject in published:
            connection.publish(subject, b"")
        await connection.flush()
        await connection.flush()
        await connection.close()
        expected = [(pattern, s) for s in published for pattern in dict.fromkeys(wanted) if matches(pattern, s)]
        assert sorted(got) == sorted(expected)

    asyncio.run(run())
