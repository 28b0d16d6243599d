"""An endless batch behind a short workload: it fills what the bound allows, and each rule ends."""

import pytest

from pointsman_simulator.background import FILLINGS, Filling, run_filled
from pointsman_simulator.comparison import Setting
from pointsman_simulator.trace import TraceRequest

TRACE = [TraceRequest(number * 150.0, 700, 40, list(range(number * 20, number * 20 + 11))) for number in range(60)]


@pytest.mark.parametrize("filling", FILLINGS)
def test_every_rule_serves_the_workload_and_all_but_one_a_batch(filling: Filling) -> None:
    found = run_filled(TRACE, Setting(2), filling)
    assert (found.background_per_s > 0) is (filling != "none")
    assert found.ttft_mean > 0
    if filling == "pointsman":
        assert 0.5 < found.used <= 1
