"""The engine's metrics as text."""

import pytest
from prometheus_client import Histogram

from pointsman_simulator.engine import EngineModel
from pointsman_simulator.exposition import SimulatedMetrics
from pointsman_simulator.sleep_mode import SleepMode


def test_asking_for_some_names_gives_their_samples_and_spares_the_histograms(monkeypatch: pytest.MonkeyPatch) -> None:
    metrics = SimulatedMetrics([EngineModel()], ("m", "n"), SleepMode(offered=False, wake_s=0.0))
    names = ("vllm:num_requests_running", "vllm:cache_config_info", "vllm:request_success_total", "unknown")
    whole = metrics.render_text().splitlines(keepends=True)

    def read(_: Histogram) -> None:
        pytest.fail("a histogram was read")

    monkeypatch.setattr(Histogram, "collect", read)
    assert metrics.render_text(names) == b"".join(
        line for line in whole if line.startswith(tuple(f"{name}{{".encode() for name in names))
    )
    assert metrics.render_text(("process_start_time_seconds",)) in whole
