"""What a worker's failures and answers make of its standing."""

import pytest

from pointsman_plugins.scheduling.demotion import Trust

Step = tuple[str, float]
"""What happened, and when: `answered`, `tried`, an outcome, or an outcome's status."""


def after(*steps: Step) -> Trust:
    standing = Trust()
    for what, at in steps:
        if what == "answered":
            standing.answered()
        elif what == "tried":
            standing.tried(at)
        elif what.isdigit():
            standing.failed("error", int(what), at)
        else:
            standing.failed(what, None, at)
    return standing


def refused(*, times: int, apart: float = 1.0) -> tuple[Step, ...]:
    return tuple(("refused", number * apart) for number in range(times))


@pytest.mark.parametrize(
    ("steps", "retry_at"),
    [
        pytest.param([("refused", 5.0)], 6.0, id="one refusal is proof"),
        pytest.param([("503", 0.0), ("timeout", 9.0), ("500", 18.0)], 19.0, id="three failures close together"),
        pytest.param([("503", 0.0), ("503", 1.0)], None, id="two failures say little"),
        pytest.param([("503", 0.0), ("503", 1.0), ("503", 11.5)], None, id="the third is too late"),
        pytest.param([("503", 0.0), ("503", 11.0), ("503", 12.0)], None, id="the first is too long ago"),
        pytest.param([("503", 0.0), ("503", 1.0), ("answered", 2.0), ("503", 3.0)], None, id="an answer lies between"),
        pytest.param([("429", 0.0), ("429", 1.0), ("404", 2.0), ("499", 3.0)], None, id="the client's doing"),
        pytest.param([("refused", 0.0), ("503", 1.0)], 3.0, id="while demoted every failure counts"),
        pytest.param([("refused", 0.0), ("429", 1.0)], 1.0, id="while demoted the client's doing still does not"),
        pytest.param([("refused", 0.0), ("answered", 1.0)], None, id="an answer ends it"),
        pytest.param([*refused(times=4), ("answered", 9.0), ("refused", 9.5)], 10.5, id="doubling begins anew"),
        pytest.param([("tried", 0.0)], None, id="who is in good standing needs no trial"),
        pytest.param([("refused", 0.0), ("tried", 1.0)], 2.0, id="a trial waits the interval that is on"),
        pytest.param([*refused(times=3), ("tried", 6.0)], 10.0, id="and no longer than it"),
        pytest.param([*refused(times=20, apart=100.0), ("tried", 2000.0)], 2030.0, id="a trial waits 30 s at most"),
    ],
)
def test_a_worker_is_demoted_on_proof_and_tried_again_in_time(steps: list[Step], retry_at: float | None) -> None:
    standing = after(*steps)
    assert standing.demoted == (retry_at is not None)
    if retry_at is not None:
        assert standing.retry_at == retry_at


def test_intervals_double_up_to_half_a_minute() -> None:
    last = [after(*refused(times=times)) for times in (1, 2, 3, 4, 5, 6, 7, 2000)]
    assert [standing.retry_at - standing.failed_at for standing in last] == [1, 2, 4, 8, 16, 30, 30, 30]
