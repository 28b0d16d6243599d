"""`explain` prints the promised, the predicted and the observed times of a service level."""

from rich.text import Text

from pointsman_cli.explain.outcome import outcome
from pointsman_contracts.response import ResponseCompleted, Usage
from pointsman_contracts.service_level import ServicePromise


def line(promise: ServicePromise, usage: Usage | None) -> str:
    event = ResponseCompleted(
        request_id="r", source="edge-1", sequence=1, at_ms=0, pool="p", status=200, outcome="ok", stream=True,
        ttft_ms=700.0, duration_ms=700.0 + 49 * 38.0, usage=usage, promise=promise,
        kept=True if usage else None,
    )  # fmt: skip
    (found,) = [part.plain for part in outcome(event) if isinstance(part, Text) and "promised" in part.plain]
    return found


def test_times_between_tokens_are_told_where_they_are_promised() -> None:
    promise = ServicePromise(ttft_ms=800.0, itl_ms=40.0, predicted_ttft_ms=640.0, predicted_itl_ms=35.0)
    told = "promised 800 ms to the first token, 40 ms between tokens · predicted 640 ms and 35 ms · got 700 ms and"
    assert f"{told} 38 ms · kept" in line(promise, Usage(completion_tokens=50))
    assert f"{told} at most 38 ms · kept" in line(promise, Usage(estimated=True, completion_tokens=50, chunks=50))
    assert f"{told} unknown · unknown" in line(promise, None)
    assert "predicted 640 ms · got 700 ms" in line(ServicePromise(ttft_ms=800.0, predicted_ttft_ms=640.0), None)


def test_a_refused_request_has_no_times() -> None:
    event = ResponseCompleted(
        request_id="r", source="edge-1", sequence=1, at_ms=0, pool="p", status=429, outcome="rejected",
        promise=ServicePromise(service_class="gold", itl_ms=40.0),
    )  # fmt: skip
    (found,) = [part.plain for part in outcome(event) if isinstance(part, Text) and "promised" in part.plain]
    assert found.strip() == "service level gold: promised 40 ms between tokens · refused"
