"""The messages about an engine on the bus."""

from dataclasses import replace

import pytest

from pointsman_contracts.worker import DrainNotice, WorkerLoad, WorkerRegistration
from pointsman_engines.models import ServedModels
from pointsman_engines.reading import CacheFacts, Reading
from pointsman_engines.report import ReportedWorker, load_of, registration_of
from pointsman_engines.status import EngineFacts, EngineStatus

WORKER = ReportedWorker("llama", "gpu-1:8000", "http://gpu-1:8000", role="decode", labels={"rack": "7"})
FACTS = EngineFacts("vllm", "0.11.2", ServedModels(("llama-3",), ("sql",), 8192), CacheFacts(16, 2000, 2))
STATUS = EngineStatus(
    reachable=True,
    reason="",
    boot_id="b1",
    reading=Reading(3, 2, 0.25, ("sql",), ("legal",), 4),
    read_at_ms=1750000000123,
    facts=FACTS,
)


def test_a_registration_says_what_the_engine_is() -> None:
    assert registration_of(WORKER, STATUS, agent="agent-1", version="0.1.0", registered_ms=5) == WorkerRegistration(
        worker="gpu-1:8000",
        pool="llama",
        url="http://gpu-1:8000",
        engine="vllm",
        engine_version="0.11.2",
        models=("llama-3",),
        loras=("sql",),
        role="decode",
        labels={"rack": "7"},
        block_tokens=16,
        kv_blocks=2000,
        max_context=8192,
        data_parallel_size=2,
        boot_id="b1",
        agent="agent-1",
        version="0.1.0",
        registered_ms=5,
    )


def test_models_that_the_operator_names_stand_in_for_those_that_the_engine_does_not_name() -> None:
    worker = replace(WORKER, models=("alias",))
    mute = replace(STATUS, facts=replace(FACTS, served=ServedModels()))
    for status, models in ((STATUS, ("llama-3",)), (mute, ("alias",))):
        registration = registration_of(worker, status, agent="a", version="0", registered_ms=0)
        assert registration is not None
        assert registration.models == models


def test_nothing_is_published_before_the_engine_reported_it() -> None:
    assert registration_of(WORKER, replace(STATUS, facts=None), agent="a", version="0", registered_ms=0) is None
    assert load_of(WORKER, EngineStatus(), 1, now_ms=0) is None
    assert load_of(WORKER, EngineStatus(), 1, named=True, now_ms=0) is None
    assert load_of(WORKER, EngineStatus(reason="connection refused"), 1, now_ms=0) is None, "it may be about to start"


def test_an_engine_that_its_pool_names_is_published_as_unreachable_before_it_ever_answered() -> None:
    load = load_of(WORKER, EngineStatus(reason="connection refused"), 1, named=True, now_ms=0)
    assert load is not None
    assert (load.state, load.reason, load.boot_id) == ("unreachable", "connection refused", "")


@pytest.mark.parametrize(
    ("reachable", "draining", "state"),
    [
        (True, False, "serving"),
        (True, True, "draining"),
        (False, False, "unreachable"),
        (False, True, "unreachable"),
    ],
)
def test_an_engine_serves_drains_or_is_unreachable(reachable: bool, draining: bool, state: str) -> None:
    notice = DrainNotice(left_ms=5000, why="upgrade") if draining else None
    load = load_of(WORKER, replace(STATUS, reachable=reachable), 7, draining=notice, now_ms=1750000000523)
    assert load == WorkerLoad(
        worker="gpu-1:8000",
        pool="llama",
        boot_id="b1",
        sequence=7,
        at_ms=1750000000123,
        age_ms=400,
        state=state,
        running=3,
        waiting=2,
        kv_usage=0.25,
        running_loras=("sql",),
        waiting_loras=("legal",),
        max_loras=4,
        draining=notice,
    )
