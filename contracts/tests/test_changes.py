"""Changes of messages are typed and complete, and an unknown field is refused."""

from typing import get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman_contracts.journey import (
    FactsChanges,
    Journey,
    JourneyChanges,
    PreprocessRequest,
    ReportChanges,
    RequestChanges,
    RequestFacts,
    Stage,
    StageReport,
)
from pointsman_contracts.message import Part, fields_of, read_fields

JOURNEY = Journey(
    request_id="r",
    edge="e",
    received_ms=1,
    deadline_ms=2,
    revision=1,
    request=RequestFacts(api="chat.completions"),
    model="m",
    itinerary=(Stage(service="guard"), Stage(service="scheduler")),
)


@pytest.mark.parametrize(
    ("changes", "model"),
    [
        (JourneyChanges, Journey),
        (FactsChanges, RequestFacts),
        (ReportChanges, StageReport),
        (RequestChanges, PreprocessRequest),
    ],
)
def test_every_change_has_the_type_of_the_field_that_it_changes(changes: type, model: type[Part]) -> None:
    wanted = get_type_hints(model)
    assert {name: wanted.get(name) for name in get_type_hints(changes)} == get_type_hints(changes)


def test_a_misspelt_field_is_an_error_that_names_it() -> None:
    with pytest.raises(TypeError, match="itinerarry"):
        # The type checkers find it, too.
        JOURNEY.changed(itinerarry=())  # type: ignore[call-arg] # pyright: ignore[reportCallIssue]


@given(st.sampled_from(["full", "degraded"]), st.lists(st.text(max_size=5), max_size=3))
def test_a_changed_journey_has_the_bytes_of_one_that_was_built_so(level: str, reasons: list[str]) -> None:
    changed = JOURNEY.changed(level=level, reasons=tuple(reasons), itinerary=JOURNEY.itinerary[1:])
    copied = read_fields(
        Journey, fields_of(JOURNEY) | {"level": level, "reasons": reasons, "itinerary": [{"service": "scheduler"}]}
    )
    assert changed == copied
    assert changed.encode() == copied.encode()
    assert Journey.decode(changed.encode()) == changed


def test_the_journey_that_is_changed_stays_as_it_was() -> None:
    before = JOURNEY.encode()
    JOURNEY.changed(itinerary=(), profile="other")
    assert JOURNEY.encode() == before
