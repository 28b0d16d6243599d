"""Records that wait for the disk.

The event loop makes each record when its input comes, and encodes many of them together: the encoder's code
has left the processor's cache between two requests, and is loaded again once for all.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from pointsman_flight.records import Record, StateChecked

TOO_SLOW: Final = "the disk was too slow"
AT_ONCE: Final = 128
"""Inputs that are encoded together, those of some 40 requests. While the encoder is in the cache,
it takes the event loop 8 us."""
MANY_BYTES: Final = 2**16
"""Bytes of block hashes that aren't left until so many inputs wait."""
_PART_BYTES: Final = 2**18
"""Records beyond this go into another part. Packing one takes the event loop some 0.3 ms."""


class EncodedPart:
    """Arrays of records, and the block hashes in them, under their own names."""

    __slots__ = ("arrays", "hashes", "size")

    def __init__(self) -> None:
        self.arrays: Final[list[bytes]] = []
        self.hashes: Final[list[bytes]] = []
        self.size = 0


class Encoded(NamedTuple):
    """Records as bytes."""

    parts: Sequence[EncodedPart]
    inputs: int
    """How many of them are inputs."""


NOTHING: Final = Encoded((), 0)


class Drained(NamedTuple):
    """Records since the last call of `drain`."""

    encoded: Encoded
    dropped: int
    """Inputs that weren't kept; none was after the first of them."""
    problem: str
    """Why the first one wasn't."""


class Backlog:
    """The records of one log that wait."""

    def __init__(self, most: int) -> None:
        """`most`: bytes that are kept until they are drained."""
        self.inputs: Final[list[Record]] = []
        """Inputs to encode. Call `encode` when there are `AT_ONCE`, or `MANY_BYTES` of `hashes`; starts and ends of
        answers leave that to the next decision."""
        self.hashes: Final = bytearray()
        """The hashes of the blocks in `inputs`, in their order."""
        self._most: Final = most
        self._encode: Final = msgspec.msgpack.Encoder().encode
        self._full: list[EncodedPart] = []
        self._full_bytes = 0
        self._part = EncodedPart()
        self._inputs = 0
        self._open = False
        self._dropped = 0
        self._problem = ""

    def open(self) -> None:
        """Keep records from now on."""
        self.take_records()
        self._open = True

    def close(self) -> None:
        """Keep none until `open`; count those that come."""
        self.encode_inputs()
        self._open = False

    def put(self, record: Record) -> None:
        """Append an input."""
        self.inputs.append(record)
        if len(self.inputs) >= AT_ONCE or len(self.hashes) >= MANY_BYTES:
            self.encode_inputs()

    def insert_record(self, record: Record) -> None:
        """Append a record that is no input and has no block hashes."""
        self.encode_inputs()
        if self._open:
            self._append((record,))

    def refuse_input(self, error: Exception) -> None:
        """An input can't be recorded."""
        self.encode_inputs()
        self.hashes.clear()
        self._drop(_unrecordable(error), 1)

    def check(self, figures: tuple[float, ...]) -> None:
        """Append the state's figures, where inputs wait. Where some are missing, the state is further than they."""
        self.encode_inputs()
        if self._inputs and not self._dropped:
            self._append((StateChecked(figures),))

    def take_records(self) -> Drained:
        """The records since the last call."""
        self.encode_inputs()
        parts = [*self._full, self._part] if self._part.arrays else self._full
        drained = Drained(Encoded(parts, self._inputs), self._dropped, self._problem)
        self._full, self._full_bytes, self._part = [], 0, EncodedPart()
        self._inputs, self._dropped, self._problem = 0, 0, ""
        return drained

    def encode_inputs(self) -> None:
        inputs, part = self.inputs, self._part
        if not inputs:
            return
        if not self._open or self._full_bytes + part.size >= self._most:
            self._drop(TOO_SLOW, len(inputs))
        else:
            part.hashes.append(bytes(self.hashes))
            part.size += len(self.hashes)
            try:
                self._append(inputs)
                self._inputs += len(inputs)
            except Exception:  # noqa: BLE001 - no request may fail for it
                self._append_each(inputs)
            if part.size > _PART_BYTES:
                self._full.append(part)
                self._full_bytes += part.size
                self._part = EncodedPart()
        inputs.clear()
        self.hashes.clear()

    def _append(self, records: Sequence[Record]) -> None:
        array = self._encode(records)
        self._part.arrays.append(array)
        self._part.size += len(array)

    def _append_each(self, records: Sequence[Record]) -> None:
        """As far as they can be encoded."""
        for done, record in enumerate(records):
            try:
                self._append((record,))
            except Exception as error:  # noqa: BLE001 - no request may fail for it
                self._drop(_unrecordable(error), len(records) - done)
                return
            self._inputs += 1

    def _drop(self, problem: str, inputs: int) -> None:
        # Records after a missing input can't be replayed: nothing more is kept until the next snapshot.
        self._problem = self._problem or problem
        self._open = False
        self._dropped += inputs


def _unrecordable(error: Exception) -> str:
    return f"an input can't be recorded: {error}"
