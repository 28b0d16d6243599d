"""Questions to limits, their verdicts and grants: inside a process, on the bus, and as the messages' own readers take
them."""

import msgspec
import pytest
from pydantic import ValidationError

from pointsman_contracts.limit_asks import (
    InnerAsk,
    InnerAsks,
    InnerGrant,
    InnerKept,
    InnerStanding,
    InnerVerdict,
    InnerVerdicts,
    known_window,
    read_asks,
    read_kept,
    read_verdicts,
    write_limits,
)
from pointsman_contracts.limits import (
    BudgetAsk,
    BudgetStanding,
    BudgetWindow,
    LimitAsk,
    LimitAsks,
    LimitGrant,
    LimitKept,
    LimitVerdict,
    LimitVerdicts,
    LimitWindow,
    WindowStanding,
)

WINDOWS = (LimitWindow(unit="tokens", amount=5, period_s=60, burst=2, measure="images"),)
BUDGET = BudgetAsk(windows=(BudgetWindow(amount=1, days=None), BudgetWindow(amount=2, days=7)), expected=3, at_most=4)
ASK = LimitAsk(
    edge="e", request_id="r", attempt=2, limit="l", shard=3, scope="s", windows=WINDOWS, cost=4.0, risk=5.0,
    reactive=True, kept=True, until_ms=6, open_s=7.0, budget=BUDGET,
)  # fmt: skip
INSIDE = InnerAsk("e", "r", 2, "l", 3, "s", WINDOWS, 4.0, 5.0, True, True, 6, 7.0, BUDGET)
BARE = InnerAsk("e", "r", 1, "l", 3, "", (), 1.0, 0.0, False, False, 6)
VERDICT = LimitVerdict(
    outcome="refused", standings=(WindowStanding(remaining=1.5, reset_s=2.5),), window=1, retry_s=3.5, keeper="k",
    budget=BudgetStanding(window=1, spent=2, reserved=3, reset_ms=4, soft=True),
)  # fmt: skip
VERDICT_INSIDE = InnerVerdict("refused", (InnerStanding(1.5, 2.5),), 1, 3.5, "k", VERDICT.budget)
KEPT = LimitKept(
    keeper="k", run="r", number=1, at=2.5, epochs=(0, 3), grants=(LimitGrant(number=1, at=0.5, ask=ASK),),
    retold=(LimitGrant(number=2, at=1.5, ask=ASK),),
)  # fmt: skip
KEPT_INSIDE = InnerKept("k", "r", 1, 2.5, (0, 3), (InnerGrant(1, 0.5, INSIDE),), (InnerGrant(2, 1.5, INSIDE),))


@pytest.mark.parametrize(
    ("inside", "part"),
    [
        (InnerAsk, LimitAsk),
        (InnerAsks, LimitAsks),
        (InnerStanding, WindowStanding),
        (InnerVerdict, LimitVerdict),
        (InnerVerdicts, LimitVerdicts),
        (InnerGrant, LimitGrant),
        (InnerKept, LimitKept),
    ],
)
def test_the_form_inside_a_process_has_the_fields_of_the_message_in_their_order(
    inside: type[msgspec.Struct],
    part: type[LimitAsk | LimitAsks | WindowStanding | LimitVerdict | LimitVerdicts | LimitGrant | LimitKept],
) -> None:
    assert inside.__struct_fields__ == tuple(part.model_fields)
    for field in msgspec.structs.fields(inside):
        assert field.required or field.default == part.model_fields[field.name].get_default()


def test_a_question_is_converted_with_all_its_fields() -> None:
    assert InnerAsk.of(ASK) == INSIDE
    assert InnerAsk.of(INSIDE) is INSIDE


def test_messages_are_read_as_their_own_writers_wrote_them() -> None:
    assert read_asks(LimitAsks(asks=(ASK,)).encode()) == InnerAsks((INSIDE,))
    assert read_verdicts(LimitVerdicts(verdicts=(VERDICT,)).encode()) == InnerVerdicts((VERDICT_INSIDE,))
    assert read_kept(KEPT.encode()) == KEPT_INSIDE


def test_the_messages_own_readers_read_what_is_written() -> None:
    bare = LimitAsk(edge="e", request_id="r", limit="l", shard=3, windows=(), until_ms=6)
    assert LimitAsks.decode(write_limits(InnerAsks((INSIDE, BARE)))).asks == (ASK, bare)
    assert LimitVerdicts.decode(write_limits(InnerVerdicts((VERDICT_INSIDE,)))).verdicts == (VERDICT,)
    assert LimitVerdicts.decode(write_limits(InnerVerdicts((InnerVerdict("elsewhere"),)))).verdicts == (
        LimitVerdict(outcome="elsewhere"),
    )
    assert LimitKept.decode(write_limits(KEPT_INSIDE)) == KEPT


def test_a_question_without_a_budget_is_written_as_the_message_writes_it() -> None:
    plain = msgspec.structs.replace(INSIDE, budget=None)
    message = LimitAsks(asks=(ASK.model_copy(update={"budget": None}),))
    assert write_limits(InnerAsks((plain,))) == message.encode()


@pytest.mark.parametrize("more", [b'"newer":1,"cost"', b'"open_s":"7","cost"'])
def test_a_question_that_only_the_messages_own_reader_takes_is_read_all_the_same(more: bytes) -> None:
    wire = LimitAsks(asks=(ASK,)).encode().replace(b'"open_s":7.0,', b"").replace(b'"cost"', more)
    assert read_asks(wire).asks[0].edge == "e"


def test_a_newer_field_of_a_window_is_ignored() -> None:
    wire = LimitAsks(asks=(ASK,)).encode().replace(b'"unit"', b'"newer":[],"unit"')
    assert read_asks(wire) == InnerAsks((INSIDE,))


@pytest.mark.parametrize("wrong", [b'"unit":"days"', b'"unit":[]', b'"unit":{}'])
def test_a_window_of_an_unknown_unit_makes_the_question_malformed(wrong: bytes) -> None:
    with pytest.raises(ValidationError):
        read_asks(LimitAsks(asks=(ASK,)).encode().replace(b'"unit":"tokens"', wrong))


def test_a_window_that_is_no_object_makes_the_question_malformed() -> None:
    wire = b'{"asks":[{"edge":"e","request_id":"r","limit":"l","shard":1,"windows":[1],"until_ms":2}]}'
    with pytest.raises(ValidationError):
        read_asks(wire)


def test_equal_windows_are_read_as_one_object() -> None:
    wire = write_limits(InnerAsks((INSIDE,)))
    assert read_asks(wire).asks[0].windows[0] is read_asks(wire).asks[0].windows[0]
    assert known_window("tokens", 5, 60, 2, "images") is read_asks(wire).asks[0].windows[0]
