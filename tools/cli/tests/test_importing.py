"""Configurations of other gateways become ones that are right here, and settings without an equivalent are named."""

from typing import Any, cast

import pytest
import yaml

from pointsman_cli.config import configuration
from pointsman_cli.importing import litellm, llm_d, vllm_router
from pointsman_cli.importing.imported import Imported
from pointsman_cli.words import CommandError
from pointsman_core.config import ConfigError, load

PROXY = """
model_list:
  - model_name: gpt-4o
    litellm_params:
      {model: azure/gpt-4o-eu, api_base: "https://x.example", api_key: os.environ/AZURE_KEY, rpm: 100, weight: 3}
  - model_name: gpt-4o
    litellm_params: {model: openai/gpt-4o, api_key: sk-secret}
  - model_name: llama
    litellm_params: {model: hosted_vllm/meta/llama, api_base: "http://127.0.0.1:8001/v1"}
  - model_name: llama
    litellm_params: {model: hosted_vllm/meta/llama, api_base: "http://127.0.0.1:8002/v1"}
  - model_name: gemini
    litellm_params: {model: gemini/gemini-2.5-flash, api_key: os.environ/GEMINI_API_KEY, input_cost_per_token: 3e-7}
  - model_name: vectors
    litellm_params: {model: text-embedding-3-small, api_key: os.environ/OPENAI_API_KEY}
    model_info: {mode: embedding}
  - {model_name: "openai/*", litellm_params: {model: "openai/*"}}
router_settings:
  routing_strategy: simple-shuffle
  redis_host: cache
  model_group_alias: {gpt4: gpt-4o}
  fallbacks: [{gemini: [llama]}]
litellm_settings: {drop_params: true, max_budget: 100, budget_duration: 1mo}
general_settings: {master_key: sk-1234, database_url: "postgres://db"}
"""
PICKER = """
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
featureGates: [flowControl]
plugins:
  - {type: queue-scorer}
  - {type: prefix-cache-scorer, parameters: {matchLengthScaleTokens: 4096}}
  - {type: decode-filter}
  - {type: approx-prefix-cache-producer}
  - {type: topology-affinity-scorer}
  - {name: ordering, type: slo-deadline-ordering-policy}
  - {name: detector, type: utilization-detector, parameters: {queueDepthThreshold: 7, headroom: 0.1}}
  - {type: max-score-picker, parameters: {maxNumOfEndpoints: 1}}
schedulingProfiles:
  - name: default
    plugins:
      - {pluginRef: decode-filter}
      - {pluginRef: queue-scorer, weight: 2}
      - {pluginRef: prefix-cache-scorer, weight: 3}
      - {pluginRef: topology-affinity-scorer}
      - {pluginRef: max-score-picker}
flowControl:
  maxBytes: 10Gi
  defaultPriorityBand: {maxRequests: 5000, orderingPolicyRef: ordering}
  priorityBands: [{priority: 10, maxRequests: 50}]
  saturationDetector: {pluginRef: detector}
"""


def written(made: Imported) -> dict[str, Any]:
    """The document, which every service takes."""
    text = made.render_yaml("a test")
    assert configuration.check(text)[1] == []
    return cast("dict[str, Any]", yaml.safe_load(text))


def noted(made: Imported) -> set[str]:
    return {note.where for note in made.notes}


def test_a_litellm_proxy_becomes_pools_providers_weights_and_budgets() -> None:
    made = litellm.read(PROXY, "config.yaml")
    document = written(made)
    assert document["pools"]["llama"] == {
        "discovery": "static",
        "models": ["meta/llama"],
        "engines": [{"url": "http://127.0.0.1:8001"}, {"url": "http://127.0.0.1:8002"}],
    }
    assert document["providers"]["gemini"] == {
        "kind": "openai",
        "base_url": "https://generativelanguage.googleapis.com/v1beta/openai",
        "credential": "env:GEMINI_API_KEY",
    }
    assert document["models"]["gemini"]["cost"] == {"input": 0.3}
    assert document["models"]["gemini"]["fallbacks"] == ["llama"]
    assert document["models"]["vectors"]["apis"] == ["embeddings"]
    assert document["rewrites"] == [{"match": ["gpt-4o", "gpt4"], "to": {"gpt-4o-1": 3, "gpt-4o-2": 1}}]
    assert {"use": "budget", "name": "all", "per": [], "amount": "100/month"} in document["preprocessing"]
    assert "sk-secret" not in made.render_yaml("a test")
    assert "sk-1234" not in made.render_yaml("a test")
    assert noted(made) >= {
        "model_list.0.litellm_params.rpm",
        "model_list.1.litellm_params.api_key",
        "model_list.6",
        "router_settings.redis_host",
        "litellm_settings.drop_params",
        "general_settings.database_url",
    }


def test_deployments_that_differ_by_their_key_are_one_provider_with_all_keys() -> None:
    deployment = "  - {model_name: NAME, litellm_params: {model: openai/gpt-5, api_key: os.environ/KEY}}"
    lines = [("big", "A"), ("big", "B"), ("big", "C"), ("small", "A"), ("mid", "B"), ("mid", "C")]
    text = "\n".join(["model_list:", *(deployment.replace("NAME", name).replace("KEY", key) for name, key in lines)])
    made = litellm.read(text, "config.yaml")
    assert made.document["models"] == {
        "big": {"provider": "openai-keys", "served_as": "gpt-5"},
        "mid": {"provider": "openai-2-keys", "served_as": "gpt-5"},
        "small": {"provider": "openai", "served_as": "gpt-5"},
    }
    assert made.document["providers"] == {
        "openai-keys": {"kind": "openai", "credential": ["env:A", "env:B", "env:C"]},
        "openai-2-keys": {"kind": "openai", "credential": ["env:B", "env:C"]},
        "openai": {"kind": "openai", "credential": "env:A"},
    }
    assert "rewrites" not in made.document
    load(made.document)


def test_the_key_of_an_engine_is_neither_copied_nor_dropped_in_silence() -> None:
    proxy = """
model_list:
  - {model_name: a, litellm_params: {model: hosted_vllm/a, api_base: "http://127.0.0.1:1/v1", api_key: sk-of-engine}}
litellm_settings: {num_retries: 2}
"""
    made = litellm.read(proxy, "config.yaml")
    assert "sk-of-engine" not in made.render_yaml("a test")
    told = {note.where: note.what for note in made.notes}
    assert "POINTSMAN_FORWARD_CREDENTIALS" in told["model_list.0.litellm_params.api_key"]
    assert "before its first byte" in told["litellm_settings.num_retries"]


@pytest.mark.parametrize(
    ("flags", "pool", "policy"),
    [
        ("--worker-urls http://127.0.0.1:1 http://127.0.0.1:2 --policy cache_aware --port 80", "engines", None),
        ("--worker-urls http://127.0.0.1:1 --policy round_robin", "engines", "round-robin"),
        (
            "--static-backends http://127.0.0.1:1,http://127.0.0.1:2 --static-models a,b --routing-logic session",
            "b",
            None,
        ),
        (
            "--service-discovery k8s --k8s-label-selector app=vllm --k8s-port 8000 --routing-logic kvaware",
            "engines",
            None,
        ),
        ("--vllm-pd-disaggregation --prefill http://127.0.0.1:1 9000 --decode http://127.0.0.1:2", "engines", None),
    ],
)
def test_flags_of_vllm_router_become_a_pool_and_a_policy(flags: str, pool: str, policy: str | None) -> None:
    made = vllm_router.read(["--", *flags.split()])
    document = written(made)
    assert pool in document["pools"]
    if policy is not None:
        assert document["scheduling"]["default"]["picker"] == policy
    assert noted(made) <= {"--port"}


def test_flags_that_name_no_engine_or_have_no_equal_are_reported() -> None:
    with pytest.raises(CommandError, match="no engine is named"):
        vllm_router.read(["--port", "80"])
    assert noted(
        vllm_router.read(["--worker-urls", "http://127.0.0.1:1", "--dp-aware", "yes", "--policy", "magic"])
    ) == {
        "--dp-aware",
        "--policy",
    }


def test_an_endpoint_picker_becomes_a_scheduling_policy() -> None:
    made = llm_d.read(PICKER, "epp.yaml")
    policy = written(made)["scheduling"]["default"]
    profile = policy["profiles"]["default"]
    assert profile["filters"] == ["healthy", "subset", {"use": "role", "role": "decode", "name": "decode-filter"}]
    assert profile["scorers"] == [
        {"use": "queue", "weight": 2},
        {"use": "prefix-cache", "match_length_scale": 4096, "weight": 3},
    ]
    assert profile["picker"] == {"use": "max-score", "endpoints": 1}
    assert policy["flow_control"] == {
        "max_bytes": "10GiB",
        "detector": {"use": "utilization", "queue": 7},
        "default_band": {"max_requests": 5000, "ordering": {"use": "slo-deadline"}},
        "bands": {10: {"max_requests": 50}},
    }
    assert noted(made) == {
        "pools",
        "plugins.detector.parameters.headroom",
        "plugins.approx-prefix-cache-producer",
        "schedulingProfiles.topology-affinity-scorer",
    }


@pytest.mark.parametrize("text", ["- a list", "kind: ConfigMap", "plugins: {"])
def test_a_file_that_is_no_endpoint_picker_is_refused_with_words(text: str) -> None:
    with pytest.raises(CommandError):
        llm_d.read(text, "epp.yaml")


@pytest.mark.parametrize("kind", ["gemini", "Google", "groq"])
def test_the_address_of_a_kind_with_openais_api_is_shown(kind: str) -> None:
    with pytest.raises(ConfigError, match=r"write `kind: openai` and `base_url: https://"):
        load({"providers": {"p": {"kind": kind}}})
