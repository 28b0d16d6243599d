"""Which answers are in a stage's share."""

from typing import cast

from hypothesis import given
from hypothesis import strategies as st

from pointsman_contracts.journey import AnswerUse, Stage
from pointsman_edge.reviewing.stage_review import StageReview
from pointsman_edge.telling.request_record import RequestRecord


class Record:
    """A request of a session, or of none."""

    def __init__(self, request_id: str, session: str | None = None) -> None:
        self.request_id = request_id
        self.decision = None if session is None else self
        self.session = None if session is None else self
        self.id = session


def is_asked(share: float, request_id: str, session: str | None = None) -> bool:
    record = cast("RequestRecord", Record(request_id, session))
    return StageReview(0, Stage(service="mirror", answer=AnswerUse(share=share)), record).is_in_share


@given(st.text(), st.text(), st.text(), st.floats(0.01, 1.0))
def test_all_turns_of_a_session_are_in_a_share_or_none(session: str, one: str, other: str, share: float) -> None:
    assert is_asked(share, one, session) == is_asked(share, other, session)


@given(st.text(), st.floats(0.01, 1.0), st.floats(0.01, 1.0))
def test_a_larger_share_has_all_of_a_smaller_one(request_id: str, one: float, other: float) -> None:
    assert is_asked(max(one, other), request_id) or not is_asked(min(one, other), request_id)


def test_every_answer_is_in_the_whole_and_a_twentieth_of_counted_ids_in_a_twentieth() -> None:
    ids = [f"req-0123456789ab-{number}" for number in range(20_000)]
    assert all(is_asked(1.0, each) for each in ids[:100])
    assert 850 < sum(is_asked(0.05, each) for each in ids) < 1150
