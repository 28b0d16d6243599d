"""The protocol parser: whatever the chunks, the messages are the same."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman_contracts import headers
from pointsman_runtime.bus import message_headers
from pointsman_runtime.bus.wire import CONTROL_LINE_LIMIT, Intake, Parser, ProtocolViolation, Raw

Message = tuple[str, str, bytes, bytes]


class Operations:
    def __init__(self) -> None:
        self.seen: list[str] = []

    def on_ping(self) -> None:
        self.seen.append("ping")

    def on_pong(self) -> None:
        self.seen.append("pong")

    def on_info(self, document: bytes) -> None:
        self.seen.append(f"info {document.decode()}")

    def on_error(self, text: str) -> None:
        self.seen.append(f"error {text}")


def parser() -> tuple[Parser, list[Message], Operations]:
    got: list[Message] = []
    operations = Operations()
    return Parser({b"7": lambda s, r, h, p: got.append((s, r, h, p))}, operations, {}), got, operations


def on_the_wire(message: Message) -> bytes:
    subject, reply, headers, payload = message
    to = f"{subject} 7 {reply}".strip()
    size = len(headers) + len(payload)
    head = f"HMSG {to} {len(headers)} {size}" if headers else f"MSG {to} {size}"
    return head.encode() + b"\r\n" + headers + payload + b"\r\n"


subjects = st.from_regex(r"[a-z]{1,8}(\.[a-z0-9]{1,8}){0,3}", fullmatch=True)
messages = st.tuples(
    subjects,
    st.just("") | subjects,
    st.just(b"") | st.binary(max_size=20).map(lambda v: b"NATS/1.0\r\nA: " + v.replace(b"\r", b"") + b"\r\n\r\n"),
    st.binary(max_size=60) | st.just(b"PING\r\nMSG a 7 3\r\n"),
)


@given(st.lists(messages, max_size=8), st.data())
def test_messages_come_out_as_they_went_in_however_they_are_cut(sent: list[Message], data: st.DataObject) -> None:
    stream = b"".join(on_the_wire(message) + b"PING\r\n" for message in sent)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    under_test, got, operations = parser()
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        under_test.parse_bytes(stream[start:end])
    assert got == sent
    assert operations.seen == ["ping"] * len(sent)


@given(st.lists(messages, max_size=8), st.data())
def test_a_gathering_has_the_same_messages(sent: list[Message], data: st.DataObject) -> None:
    stream = b"".join(on_the_wire(message) for message in sent)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    gathered: list[Raw] = []
    others: list[Message] = []
    told: list[int] = []

    def other(subject: str, reply: str, headers: bytes, payload: bytes) -> None:
        others.append((subject, reply, headers, payload))

    intake = Intake(gathered, lambda: told.append(len(gathered)), other)
    under_test = Parser({}, Operations(), {b"7": intake})
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        under_test.parse_bytes(stream[start:end])
    assert [(s.decode(), r.decode(), h, p) for s, r, h, p in gathered] == [each for each in sent if each[1]]
    assert others == [each for each in sent if not each[1]]
    assert told[-1:] == ([len(gathered)] if gathered else [])


@given(st.binary(max_size=200))
def test_any_bytes_are_parsed_or_refused_and_never_crash(data: bytes) -> None:
    under_test, _, _ = parser()
    try:
        under_test.parse_bytes(data)
    except ProtocolViolation:
        return


def test_operations_are_distinguished() -> None:
    under_test, _, operations = parser()
    under_test.parse_bytes(
        b"INFO {}\r\nPING\r\nPONG\r\n+OK\r\n-ERR 'Permissions Violation for Subscription to \"a\"'\r\n"
    )
    assert operations.seen == ["info {}", "ping", "pong", 'error Permissions Violation for Subscription to "a"']


@pytest.mark.parametrize(
    "line", [b"HELLO\r\n", b"MSG a 7\r\n", b"MSG a x 3\r\nabc\r\n", b"HMSG a 7 x 3\r\nabc\r\n", b"MSG\r\n"]
)
def test_bytes_outside_the_protocol_are_refused(line: bytes) -> None:
    under_test, _, _ = parser()
    with pytest.raises(ProtocolViolation):
        under_test.parse_bytes(line)


def test_a_control_line_without_an_end_is_refused() -> None:
    under_test, _, _ = parser()
    under_test.parse_bytes(b"x" * CONTROL_LINE_LIMIT)
    with pytest.raises(ProtocolViolation):
        under_test.parse_bytes(b"x")


def test_a_message_for_an_ended_subscription_is_dropped() -> None:
    under_test, got, _ = parser()
    under_test.parse_bytes(b"MSG a 8 3\r\nabc\r\nMSG b 7 0\r\n\r\n")
    assert got == [("b", "", b"", b"")]


@given(
    st.from_regex(r"[a-z.0-9-]{1,30}", fullmatch=True),
    st.none() | st.integers(0, 2**53),
    st.none() | st.from_regex(r"00-[0-9a-f]{32}-[0-9a-f]{16}-0[01]", fullmatch=True),
    st.none() | st.from_regex(r"[a-z:.0-9]{1,40}", fullmatch=True),
)
def test_headers_come_out_as_they_went_in(
    type_id: str, deadline: int | None, traceparent: str | None, message_id: str | None
) -> None:
    block = message_headers.build(type_id, deadline_ms=deadline, traceparent=traceparent, message_id=message_id)
    assert message_headers.find(block, f"\r\n{headers.TYPE}:".encode()) == type_id
    assert message_headers.deadline_ms(block) == deadline
    assert message_headers.find(block, message_headers.TRACEPARENT_NAME) == traceparent
    assert message_headers.find(block, f"\r\n{headers.MESSAGE_ID}:".encode()) == message_id
    assert message_headers.status(block) is None


@given(st.binary(max_size=100))
def test_any_header_block_can_be_read(block: bytes) -> None:
    deadline = message_headers.deadline_ms(block)
    assert deadline is None or deadline >= 0
    message_headers.status(block)


def test_a_deadline_with_too_many_digits_is_none() -> None:
    block = b"NATS/1.0\r\nPm-Deadline: " + b"9" * 5000 + b"\r\n\r\n"
    assert message_headers.deadline_ms(block) is None


@pytest.mark.parametrize("odd", [b"a.\xff", b"a.\x0b", b"a.\x0cb", b"\xc3\xa9"])
def test_subjects_that_a_server_passes_on_though_they_are_no_names_end_nothing(odd: bytes) -> None:
    under_test, got, _ = parser()
    under_test.parse_bytes(b"MSG %b 7 %b 1\r\nx\r\nMSG a 7 %b 1\r\ny\r\nMSG b 7 0\r\n\r\n" % (odd, odd, odd))
    text = odd.decode("utf-8", "replace")
    assert got == [(text, text, b"", b"x"), ("a", text, b"", b"y"), ("b", "", b"", b"")]


def test_headers_of_other_clients_are_read() -> None:
    block = b"NATS/1.0\r\nother: 1\r\nPm-Deadline:17\r\ntraceparent:\t00-ab\r\n\r\n"
    assert message_headers.deadline_ms(block) == 17
    assert message_headers.find(block, message_headers.TRACEPARENT_NAME) == "00-ab"
    assert message_headers.status(b"NATS/1.0 503\r\n\r\n") == "503"
