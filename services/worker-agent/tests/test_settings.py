"""The settings of an agent."""

import pytest

from pointsman_engines.report import ReportedWorker
from pointsman_engines.speaker import EngineAccess
from pointsman_runtime.configuring.settings import SettingsError, load
from pointsman_worker_agent.settings import WorkerAgentSettings


def with_env(monkeypatch: pytest.MonkeyPatch, **env: str) -> WorkerAgentSettings:
    for name, value in {"ENGINE_URL": "http://127.0.0.1:8000/", "POOL": "llama", **env}.items():
        monkeypatch.setenv(f"POINTSMAN_{name}", value)
    return load(WorkerAgentSettings)


def test_an_agent_needs_to_know_its_engine_and_its_pool_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = with_env(monkeypatch)
    assert settings.described() == ReportedWorker("llama", "127.0.0.1:8000", "http://127.0.0.1:8000")
    assert settings.engine_access() == EngineAccess("http://127.0.0.1:8000/")


def test_edges_may_reach_the_engine_by_another_address_than_the_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = with_env(
        monkeypatch,
        ADVERTISE_URL="http://10.0.0.7:8000",
        METRICS_URL="http://127.0.0.1:8002/metrics",
        ENGINE="triton",
        ENGINE_API_KEY="a-secret",
        MODELS='["llama-3"]',
        ROLE="prefill",
        LABELS='{"rack": "7"}',
    )
    assert settings.described() == ReportedWorker(
        "llama", "10.0.0.7:8000", "http://10.0.0.7:8000", "prefill", {"rack": "7"}, ("llama-3",)
    )
    access = settings.engine_access()
    assert (access.metrics_url, access.engine, access.api_key) == (
        "http://127.0.0.1:8002/metrics",
        "triton",
        "a-secret",
    )
    assert "a-secret" not in repr(settings) + repr(access)


@pytest.mark.parametrize(
    ("env", "complaint"),
    [
        ({"ENGINE_URL": "127.0.0.1:8000"}, "must begin with http://, https:// or unix:"),
        ({"ENGINE_URL": "http://:8000"}, "no host; e.g. http://127.0.0.1:8000"),
        ({"ADVERTISE_URL": "http://[::1"}, "no host"),
        ({"ENGINE_URL": "unix:vllm.sock"}, "absolute path"),
        ({"ENGINE_URL": "unix:/run/vllm.sock", "METRICS_URL": "http://127.0.0.1:1/metrics"}, "behind the same one"),
        ({"LABELS": "rack=1"}, "in JSON"),
        ({"POOL": ""}, "pool (POINTSMAN_POOL)"),
        ({"ENGINE": "ollama"}, "known: auto, llamacpp, sglang, triton, trtllm, vllm"),
        ({"IDLE_INTERVAL_S": "0.02"}, "must not be below busy_interval_s"),
        ({"BUSY_INTERVAL_S": "0"}, "busy_interval_s"),
    ],
)
def test_a_wrong_setting_is_refused_with_words(
    monkeypatch: pytest.MonkeyPatch, env: dict[str, str], complaint: str
) -> None:
    with pytest.raises(SettingsError) as refused:
        with_env(monkeypatch, **env)
    assert complaint in str(refused.value)
