"""The words of a dry run."""

import pytest

from pointsman_cli.explain.dry_run import forecast, headline
from pointsman_contracts.response import RequestRejected
from pointsman_contracts.scheduling import DryRunForecast
from pointsman_testing import builders


@pytest.mark.parametrize(
    ("told", "words"),
    [
        (
            DryRunForecast(),
            "would wait in flow control, for an unknown time · first token: not predictable yet · no price",
        ),
        (
            DryRunForecast(queue_ms=0.0, ttft_ms=81.6, prompt_nanos=850, answer_nanos=80_000),
            "no wait in flow control · first token after 82 ms · prompt $0.00000085, "
            "each 1,000 tokens of the answer $0.00008",
        ),
        (
            DryRunForecast(queue_ms=2500.0, lacks_room=True),
            "would wait about 2,500 ms in flow control, then for room in the engine's KV cache · "
            "first token: not predictable yet · no price",
        ),
    ],
)
def test_unknown_times_and_prices_are_named_as_unknown(told: DryRunForecast, words: str) -> None:
    assert forecast(told) == words


def test_the_headline_of_a_refusal_has_status_code_stage_and_reason() -> None:
    event = RequestRejected(
        request_id="dry-run-1", source="edge-1", sequence=0, at_ms=0, stage="guard", status=403, code="content_filter",
        reason="The prompt was blocked.",
    )  # fmt: skip
    assert headline(event) == "would be refused by guard: 403 (content_filter)\n  The prompt was blocked."


def test_the_headline_of_a_decision_names_engines_and_the_next_models() -> None:
    event = builders.scheduled(
        endpoints=("engine-2", "engine-1"), dry_run=DryRunForecast(queue_ms=0.0, fallbacks=("large",))
    )
    lines = headline(event).split("\n  ")
    assert lines[0].startswith("would go to engine-2, then engine-1  ")
    assert lines[-1] == "where its engines fail, the next models are large"
