"""Probes of engines that lack a feature, or have another form of it."""

import aiohttp
import pytest

from pointsman_engines.exposition import Exposition
from pointsman_engines.probes.features import FEATURES, FeatureResult, Outcome, find, probed
from pointsman_testing.fake_engine import FakeEngine

TITLES = {feature.key: feature for feature in FEATURES}


async def found(engine: FakeEngine, key: str) -> FeatureResult:
    async with aiohttp.ClientSession() as http:
        return await find(await probed(engine.url, "m", http), TITLES[key])


@pytest.mark.parametrize(
    ("exposition", "key", "outcome", "note"),
    [
        (None, "metrics.waiting", Outcome.SUPPORTED, "vllm:num_requests_waiting"),
        (None, "metrics.sleep", Outcome.SUPPORTED, "vllm:engine_sleep_state"),
        (
            "# TYPE vllm:num_requests_waiting counter\nvllm:num_requests_running 0\nvllm:num_requests_waiting 0\n",
            "metrics.waiting",
            Outcome.DIFFERENT,
            "vllm:num_requests_waiting is a counter",
        ),
        ("vllm:num_requests_running 0\n", "metrics.waiting", Outcome.MISSING, "no vllm:num_requests_waiting"),
        ("other:requests_processing 0\n", "metrics.waiting", Outcome.MISSING, "no metrics of a kind"),
    ],
)
async def test_a_metric_is_found_by_name_and_type(
    exposition: str | None, key: str, outcome: Outcome, note: str
) -> None:
    async with FakeEngine(exposition=exposition) as engine:
        finding = await found(engine, key)
    assert (finding.outcome, finding.note[: len(note)]) == (outcome, note)


async def test_a_path_that_is_not_there_is_missing_and_an_answer_of_another_kind_differs() -> None:
    async with FakeEngine() as engine:
        assert (await found(engine, "responses")).outcome is Outcome.MISSING
        assert (await found(engine, "error.request")).outcome is Outcome.DIFFERENT
        assert (await found(engine, "chat.stream")).outcome is Outcome.DIFFERENT


def test_the_type_of_a_counter_is_read_with_its_ending_or_without() -> None:
    text = b"# TYPE a_total counter\na_total 1\n# HELP b B.\n# TYPE b counter\nb_total 2\nc 3\n"
    exposition = Exposition(text)
    assert [exposition.kind_of(name) for name in (b"a_total", b"b_total", b"c")] == ["counter", "counter", None]
