"""Which changes of an engine's state are logged."""

from pointsman_engines.logged_problem import WARNED_EVERY_S, LoggedProblem


def test_an_engine_that_flaps_is_warned_of_once_a_minute() -> None:
    logged, warned = LoggedProblem(), 0
    for look in range(6000):
        problem = ("refused", "", "no answer in time")[look % 3]
        warned += logged.is_news(problem, look * 0.1) and bool(problem)
    assert warned == 600 / WARNED_EVERY_S


def test_a_problem_that_was_held_back_and_lasts_is_logged_when_its_time_has_come() -> None:
    logged = LoggedProblem()
    assert logged.is_news("refused", 0.0)
    assert logged.is_news("", 1.0)
    told = [second for second in range(2, 200) if logged.is_news("no answer in time", float(second))]
    assert told == [60]


def test_any_first_state_is_logged_and_later_ones_only_when_they_change() -> None:
    for problem in ("", "refused"):
        logged = LoggedProblem()
        assert [logged.is_news(problem, now) for now in (0.0, 100.0, 200.0)] == [True, False, False]
