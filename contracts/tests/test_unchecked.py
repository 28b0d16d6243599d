"""The constructors that take their values as they are."""

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from pointsman_contracts.journey import HeaderEdit, RequestFacts, StageReport
from pointsman_contracts.limits import CounterState, LimitAsk, LimitGrant, LimitKept, LimitWindow
from pointsman_contracts.message import Part, unchecked
from pointsman_contracts.reply import Decision
from pointsman_contracts.response import ResponseCompleted


@given(st.text(), st.none() | st.text(), st.floats(allow_nan=False, allow_infinity=False))
def test_a_part_that_was_built_unchecked_is_the_one_that_is_decoded(
    stage: str, note: str | None, took_ms: float
) -> None:
    built = StageReport(stage=stage, instance="i", took_ms=took_ms, note=note)
    assert StageReport.model_validate_json(built.model_dump_json()) == built
    assert StageReport.model_validate(built.model_dump()) == built
    assert list(built.__dict__) == list(StageReport.model_fields)


@given(cost=st.floats(0, 1e9), risk=st.floats(0, 1e9), scope=st.text(max_size=9), open_s=st.none() | st.floats(0, 1e6))
def test_a_message_with_unchecked_parts_has_the_bytes_of_a_validated_one(
    cost: float, risk: float, scope: str, open_s: float | None
) -> None:
    windows = (LimitWindow(unit="tokens", amount=5, period_s=60),)
    ask = LimitAsk(
        edge="e", request_id="r", limit="l", shard=3, scope=scope, windows=windows, cost=cost, risk=risk, until_ms=7,
        open_s=open_s,
    )  # fmt: skip
    kept = LimitKept(keeper="k", run="r", number=1, at=2.5, grants=(LimitGrant(number=1, at=0.5, ask=ask),))
    validated = LimitKept.model_validate(kept.model_dump())
    assert validated == kept
    assert validated.encode() == kept.encode()
    assert LimitKept.decode(kept.encode()) == kept


def test_a_whole_number_in_a_field_of_floats_travels_as_a_float() -> None:
    built = CounterState(window="tokens/60", limit="l", slots=(5,))
    assert built.model_dump_json() == CounterState.model_validate(built.model_dump()).model_dump_json()
    assert "[5.0]" in built.model_dump_json()


def test_a_part_that_was_built_unchecked_is_copied_changed_and_printed_as_any_other() -> None:
    built, decoded = HeaderEdit(name="a"), HeaderEdit.model_validate_json('{"name": "a"}')
    assert copy.copy(built) == copy.deepcopy(built) == built == decoded
    assert built.with_fields({"value": "b"}) == built.model_copy(update={"value": "b"})
    assert (repr(built), hash(built), dict(built)) == (repr(decoded), hash(decoded), dict(decoded))
    assert (built.model_extra, built.model_fields_set) == (None, set())
    assert not hasattr(built, "vlaue")


def test_two_parts_share_no_default() -> None:
    assert RequestFacts(api="chat").headers is not RequestFacts(api="chat").headers


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [({}, "name"), ({"name": "a", "valeu": "b"}, "valeu")],
    ids=["a field is missing", "a field doesn't exist"],
)
def test_a_constructor_names_the_field_that_is_wrong(arguments: dict[str, str], problem: str) -> None:
    with pytest.raises(TypeError, match=problem):
        HeaderEdit(**arguments)


def test_a_part_that_was_built_unchecked_stays_frozen() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        # The type checkers find it, too.
        HeaderEdit(name="a").name = "b"  # type: ignore[misc] # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize("kind", [HeaderEdit, RequestFacts, Decision, ResponseCompleted])
def test_decoding_validates(kind: type[Part]) -> None:
    with pytest.raises(ValidationError):
        kind.model_validate_json("{}")


def test_a_class_derived_from_an_unchecked_one_is_decoded_with_its_own_fields() -> None:
    @unchecked
    class Named(HeaderEdit):
        whose: str = "x"

    assert Named.model_validate_json('{"name": "a", "whose": "b"}') == Named(name="a", whose="b")
