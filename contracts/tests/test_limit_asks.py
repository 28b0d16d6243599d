"""Questions to limits and their verdicts, inside a process and on the bus."""

import msgspec
import pytest

from pointsman_contracts.limit_asks import InnerAsk, InnerStanding, InnerVerdict, told
from pointsman_contracts.limits import BudgetStanding, LimitAsk, LimitVerdict, LimitWindow, WindowStanding

WINDOWS = (LimitWindow(unit="tokens", amount=5, period_s=60),)
ASK = LimitAsk(
    edge="e", request_id="r", attempt=2, limit="l", shard=3, scope="s", windows=WINDOWS, cost=4.0, risk=5.0,
    reactive=True, kept=True, until_ms=6, open_s=7.0,
)  # fmt: skip


@pytest.mark.parametrize(
    ("inside", "part"), [(InnerAsk, LimitAsk), (InnerStanding, WindowStanding), (InnerVerdict, LimitVerdict)]
)
def test_the_form_inside_a_process_has_the_fields_of_the_messages_part_in_their_order(
    inside: type[msgspec.Struct], part: type[LimitAsk | WindowStanding | LimitVerdict]
) -> None:
    assert inside.__struct_fields__ == tuple(part.model_fields)


def test_a_question_is_told_with_all_its_fields() -> None:
    inside = InnerAsk("e", "r", 2, "l", 3, "s", WINDOWS, 4.0, 5.0, True, True, 6, 7.0)
    assert told(inside) == ASK
    assert told(ASK) is ASK


def test_a_verdict_is_told_and_read_with_all_its_fields() -> None:
    budget = BudgetStanding(window=1, spent=2, reserved=3, reset_ms=4, soft=True)
    verdict = LimitVerdict(
        outcome="refused", standings=(WindowStanding(remaining=1.5, reset_s=2.5),), window=0, retry_s=3.5, keeper="k",
        budget=budget,
    )  # fmt: skip
    assert InnerVerdict.of(verdict) == InnerVerdict("refused", (InnerStanding(1.5, 2.5),), 0, 3.5, "k", budget)
    assert InnerVerdict.of(verdict).told() == verdict
