"""Where a stream begins to say something."""

from typing import Final

import pytest

from pointsman_edge.sending.first_events import FirstEvents

EVENT: Final = b'data: {"choices":[{"index":0,"delta":{"content":"Hi"}}]}\n\n'


@pytest.mark.parametrize("place", range(1, len(EVENT) - 1))
def test_a_part_of_an_event_says_nothing(place: int) -> None:
    first = FirstEvents()
    assert not first.feed(EVENT[:place], last=False)
    assert first.feed(EVENT[place:], last=False)
