"""Requests that wait for a stage: in order, a few at a time, bounded."""

import pytest

from pointsman_journey import held_requests
from pointsman_journey.held_requests import AT_LEAST_S, PACE, HeldRequests, MissingStage
from pointsman_testing import eventually

PICKER = MissingStage("profile-picker")


class Request:
    def __init__(self, number: int, went_on: list[int], size: int = 10) -> None:
        self.number = number
        self.size = size
        self._went_on = went_on

    def go_on(self, now: float) -> None:
        del now
        self._went_on.append(self.number)


class Stages:
    def __init__(self) -> None:
        self.back: set[MissingStage] = set()
        self.looks = 0

    def is_back(self, place: MissingStage, now: float) -> bool:
        del now
        self.looks += 1
        return place in self.back


async def test_held_requests_go_on_in_order_once_their_stage_is_back() -> None:
    stages, went_on = Stages(), list[int]()
    held = HeldRequests(stages.is_back)
    for number in range(3 * PACE):
        assert held.hold(Request(number, went_on), PICKER, -AT_LEAST_S)
    other = Request(-1, went_on)
    held.hold(other, MissingStage("scheduler", "llama"), -AT_LEAST_S)
    await eventually(lambda: stages.looks >= 4)
    assert went_on == []
    stages.back.add(PICKER)
    await eventually(lambda: len(held) == 1)
    assert went_on == list(range(3 * PACE))
    held.let_go(other)


async def test_a_stage_that_is_back_gets_them_a_few_at_a_time() -> None:
    stages, went_on = Stages(), list[int]()
    held = HeldRequests(stages.is_back)
    stages.back.add(PICKER)
    for number in range(2 * PACE):
        held.hold(Request(number, went_on), PICKER, -AT_LEAST_S)
    await eventually(lambda: went_on)
    assert len(went_on) in (PACE, 2 * PACE)
    assert stages.looks == len(went_on) / PACE
    await eventually(lambda: len(held) == 0)


async def test_requests_that_ended_are_forgotten() -> None:
    stages, went_on = Stages(), list[int]()
    held = HeldRequests(stages.is_back)
    first, second = Request(1, went_on), Request(2, went_on)
    held.hold(first, PICKER, -AT_LEAST_S)
    held.hold(second, PICKER, -AT_LEAST_S)
    held.let_go(first)
    held.let_go(first)
    stages.back.add(PICKER)
    await eventually(lambda: went_on == [2])


@pytest.mark.parametrize(("most", "most_bytes"), [(2, 1000), (1000, 25)])
async def test_no_more_are_held_than_fit(monkeypatch: pytest.MonkeyPatch, most: int, most_bytes: int) -> None:
    monkeypatch.setattr(held_requests, "MOST", most)
    monkeypatch.setattr(held_requests, "MOST_BYTES", most_bytes)
    held, went_on = HeldRequests(Stages().is_back), list[int]()
    requests = [Request(number, went_on) for number in range(4)]
    assert [held.hold(request, PICKER, 0.0) for request in requests] == [True, True, False, False]
    held.let_go(requests[0])
    assert held.hold(requests[3], PICKER, 0.0)
    assert (len(held), held.total) == (2, 3)
    for request in requests:
        held.let_go(request)


async def test_an_outage_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    stages, went_on = Stages(), list[int]()
    held = HeldRequests(stages.is_back)
    for number in range(3):
        held.hold(Request(number, went_on), PICKER, -AT_LEAST_S)
    stages.back.add(PICKER)
    await eventually(lambda: len(held) == 0)
    assert [record.getMessage() for record in caplog.records].count("degraded") == 1
