"""Which changes of an engine's state are logged."""

from pointsman_engines.said import WARNED_EVERY_S, Said


def test_an_engine_that_flaps_is_warned_of_once_a_minute() -> None:
    said, warned = Said(), 0
    for look in range(6000):
        problem = ("refused", "", "no answer in time")[look % 3]
        warned += said.worth(problem, look * 0.1) and bool(problem)
    assert warned == 600 / WARNED_EVERY_S


def test_a_problem_that_was_held_back_and_lasts_is_told_when_its_time_has_come() -> None:
    said = Said()
    assert said.worth("refused", 0.0)
    assert said.worth("", 1.0)
    told = [second for second in range(2, 200) if said.worth("no answer in time", float(second))]
    assert told == [60]


def test_the_first_state_is_told_whatever_it_is_and_again_only_when_it_changes() -> None:
    for problem in ("", "refused"):
        said = Said()
        assert [said.worth(problem, now) for now in (0.0, 100.0, 200.0)] == [True, False, False]
