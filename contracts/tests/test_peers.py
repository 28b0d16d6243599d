"""Reservations as a scheduler reads its peers'."""

import msgspec
import pytest
from pydantic import ValidationError

from pointsman_contracts.peers import PeerChange, PeerReservations, PeerUnbound, read_reservations
from pointsman_contracts.scheduling import ReservationChange, Reservations, UnboundRequest

CHANGE = ReservationChange(
    op="reserve", request_id="r", worker="w0", boot_id="b", edge="e", leg="prefill", attempt=2, lora="l", session="s",
    rank=1, prompt_tokens=9, uncached_tokens=8, output_tokens=7, block_tokens=32, blocks=bytes(range(248, 256)),
    blocks_precise=True, streamed=False,
)  # fmt: skip
UNBOUND = UnboundRequest(
    worker="w0", uncached_tokens=1, prompt_tokens=2, priority=-3, left_ms=-4, request_id="u", edge="e", waited_ms=5,
    max_output_tokens=6, block_tokens=32, blocks=bytes(range(248, 256)),
)  # fmt: skip
MESSAGE = Reservations(pool="llama", scheduler="s-2", sequence=4, at_ms=5, changes=(CHANGE,), unbound=(UNBOUND,))


@pytest.mark.parametrize(
    ("read", "message"),
    [(PeerReservations, Reservations), (PeerChange, ReservationChange), (PeerUnbound, UnboundRequest)],
)
def test_the_schedulers_form_has_the_fields_of_the_message(
    read: type[msgspec.Struct], message: type[Reservations | ReservationChange | UnboundRequest]
) -> None:
    fields = {field.encode_name: field for field in msgspec.structs.fields(read)}
    assert fields.keys() == message.model_fields.keys()
    for name, twin in message.model_fields.items():
        assert fields[name].required == twin.is_required()
        assert fields[name].required or name == "blocks" or fields[name].default == twin.get_default()


def test_reservations_are_read_as_they_were_published() -> None:
    read = read_reservations(MESSAGE.encode())
    assert isinstance(read, PeerReservations)
    assert read.unbound is not None
    for one, twin in ((read, MESSAGE), (read.changes[0], CHANGE), (read.unbound[0], UNBOUND)):
        for name in type(twin).model_fields.keys() - {"changes", "unbound"}:
            assert getattr(one, name) == getattr(twin, name), name


def test_absent_fields_have_the_defaults_of_the_message() -> None:
    change = b'{"op":"release","request_id":"r","worker":"w"}'
    text = b'{"pool":"p","scheduler":"s","sequence":1,"at_ms":2,"changes":[%b]}' % change
    read = read_reservations(text)
    assert read.unbound is None
    for name in ReservationChange.model_fields:
        assert getattr(read.changes[0], name) == getattr(Reservations.decode(text).changes[0], name)


def test_reservations_with_a_number_in_a_string_are_accepted_as_before() -> None:
    assert read_reservations(MESSAGE.encode().replace(b'"sequence":4', b'"sequence":"4"')) == MESSAGE


@pytest.mark.parametrize("blocks", [b"A", b"AAAAA", b"A A=", b"AA*A="])
def test_blocks_that_are_no_base64_make_the_message_malformed(blocks: bytes) -> None:
    with pytest.raises(ValidationError):
        read_reservations(MESSAGE.encode().replace(b"-Pn6-_z9_v8=", blocks))
