"""The view of a pool's engines for people."""

from pointsman_contracts.fleet import FleetQuery, FleetView
from pointsman_scheduler.domain.flow_control import Figures
from pointsman_scheduler.domain.pools import Pools
from pointsman_scheduler.fleet_view import FleetViews
from pointsman_testing.scheduler_bench import Bench


def seen(bench: Bench, queued: int = 0) -> FleetView:
    pools = Pools("scheduler-1", 2**20)
    pools._pools["llama"] = bench.pool  # pyright: ignore[reportPrivateUsage] - the bench's pool is made elsewhere
    views = FleetViews(
        "scheduler-1",
        pools,
        lambda _: bench.policy,
        lambda: [("llama", Figures(queued, 0, {})), ("other", Figures(7, 0, {}))],
        lambda: bench.now,
    )
    return FleetView.decode(views.answer_query(FleetQuery(pool="llama")).encode())


def test_a_view_counts_the_requests_of_each_engine_and_those_that_wait() -> None:
    bench = Bench()
    bench.join("a", "b")
    bench.decide()
    view = seen(bench, queued=3)
    assert view.workers == ("a", "b")
    assert sum(view.open) == 1
    assert (view.queued, view.unbound, view.ignored) == (3, 0, {})
    assert view.speeds == (1.0, 1.0)


def test_an_engine_that_decisions_leave_out_has_the_filters_reason() -> None:
    bench = Bench()
    bench.join("a", "b")
    bench.now += 1.0
    bench.hear("a")
    bench.now += 1.0
    bench.hear("a")
    view = seen(bench)
    assert list(view.ignored) == ["b"]
    assert view.ignored["b"] == "silent for 2.0 s"


def test_speeds_are_left_out_while_the_predictions_are_of_another_fleet() -> None:
    bench = Bench()
    bench.join("a")
    bench.serve()
    bench.join("b")
    assert seen(bench).speeds == ()


def test_an_unknown_pool_has_no_engines() -> None:
    views = FleetViews("scheduler-1", Pools("scheduler-1", 2**20), lambda _: None, list)
    assert views.answer_query(FleetQuery(pool="nobody")).workers == ()
