"""The flags of vllm-router: that of vLLM's production stack, and the one in Rust (https://github.com/vllm-project)."""

from collections.abc import Sequence
from typing import Final

from pointsman_cli.importing.imported import Document, Imported
from pointsman_cli.importing.imported import listed as listed_in
from pointsman_cli.words import CommandError

_SCORERS: Final[dict[str, Document]] = {
    "roundrobin": {"scorers": [], "picker": "round-robin"},
    "round_robin": {"scorers": [], "picker": "round-robin"},
    "random": {"scorers": [], "picker": "random"},
    "power_of_two": {"scorers": ["running"], "picker": "power-of-two"},
    "session": {"scorers": [{"use": "session", "weight": 10}, "queue"]},
    "consistent_hash": {"scorers": [{"use": "session", "weight": 10}, "queue"]},
    "prefixaware": {"scorers": [{"use": "prefix-cache", "weight": 3}, "queue"]},
    "kvaware": {"scorers": [{"use": "prefix-cache", "weight": 3}, "queue"]},
    "ttft": {"scorers": [{"use": "least-delay", "weight": 10}, "queue"]},
    "cache_aware": {},
}
"""Routing logic → scheduling policy; an empty one is the default policy (docs/default-policy.md)."""
_LISTS: Final = ("--worker-urls", "--prefill", "--decode")
_SWITCHES: Final = (
    "--vllm-pd-disaggregation", "--log-stats", "--k8s-insecure", "--enable-batch-api", "--static-backend-health-checks",
)  # fmt: skip
_WORDS: Final = {
    "--host": "set POINTSMAN_HOST of the frontend",
    "--port": "set POINTSMAN_PORT of the frontend, or pointsman up --port",
    "--engine-stats-interval": "engines are followed by agents or scraped as they change",
    "--request-stats-window": "see docs/metrics.md for what is measured",
    "--log-stats": "see docs/metrics.md for what is measured",
    "--cache-threshold": "the default policy weighs cached blocks against the queue (docs/default-policy.md)",
    "--balance-abs-threshold": "the default policy weighs cached blocks against the queue (docs/default-policy.md)",
    "--balance-rel-threshold": "the default policy weighs cached blocks against the queue (docs/default-policy.md)",
    "--session-key": "the session is in x-session-id, or what edges read (docs/configuration.md)",
    "--api-key": "make keys with pointsman keys create, and add {use: api-key-auth, stored: true} to preprocessing",
    "--prometheus-port": "every process has /metrics (docs/metrics.md)",
    "--static-backend-health-checks": "engines are watched all the time",
    "--lmcache-controller-port": "KV events of engines are read by their agents (docs/default-policy.md)",
    "--model-aliases": "write rewrites: [{match: [ALIAS], to: {MODEL: 1}}]",
}


def read(arguments: Sequence[str]) -> Imported:
    """The configuration that these flags describe. CommandError for flags without an engine."""
    flags = _flags([each for each in arguments if each not in ("--", "vllm-router", "serve")])
    made = Imported()
    engines = [*_several(flags.pop("--worker-urls", [])), *_commas(flags.pop("--static-backends", []))]
    roles: list[Document] = [
        {"url": url, "role": role}
        for flag, role in (("--prefill", "prefill"), ("--decode", "decode"))
        for url in _several(flags.pop(flag, []))
    ]
    models = _commas(flags.pop("--static-models", []))
    policy = (flags.pop("--routing-logic", None) or flags.pop("--policy", None) or ["cache_aware"])[0]
    selector = flags.pop("--k8s-label-selector", None)
    namespace, port = flags.pop("--k8s-namespace", None), flags.pop("--k8s-port", None)
    discovery = (flags.pop("--service-discovery", None) or [""])[0]
    flags.pop("--vllm-pd-disaggregation", None)
    pools: dict[str, Document] = {}
    if selector or discovery.startswith("k8s"):
        labels = dict(each.split("=", 1) for each in _commas(selector or []) if "=" in each)
        place: Document = {"selector": labels, "ports": [int((port or ["8000"])[0])]}
        if namespace:
            place["namespace"] = namespace[0]
        pools["engines"] = {"discovery": "kubernetes", "kubernetes": place}
    elif roles or engines:
        listed = [*roles, *({"url": url} for url in engines)]
        if models and len(models) == len(listed):
            for model, engine in zip(models, listed, strict=True):
                pool = pools.setdefault(model, {"discovery": "static", "models": [model], "engines": []})
                pool["engines"] = [*listed_in(pool["engines"], model), engine]
        else:
            pools["engines"] = {"discovery": "static", "engines": listed}
    else:
        raise CommandError(
            "no engine is named.",
            "Write the flags behind --, e.g. -- --worker-urls http://engine-1:8000 --policy cache_aware",
        )
    made.document["pools"] = pools
    scheduling = _SCORERS.get(policy)
    if scheduling is None:
        made.note_ignored("--policy", f"{policy} has no equivalent; the default policy decides")
    elif roles:
        made.document["scheduling"] = {"default": _disaggregated()}
    elif scheduling:
        made.document["scheduling"] = {"default": scheduling}
    for flag in sorted(flags):
        made.note_ignored(flag, _WORDS.get(flag, "has no equivalent"))
    return made


def _disaggregated() -> Document:
    return {
        "handler": {"use": "disaggregated", "prefill_when": "long"},
        "deciders": [{"use": "prefix", "name": "long"}],
        "profiles": {
            role: {"filters": ["healthy", {"use": "role", "name": f"{role}-role", "role": role}]}
            for role in ("decode", "prefill")
        },
        "pre-request": ["destination-header", "prefill-header"],
    }


def _flags(arguments: Sequence[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    flag = ""
    for argument in arguments:
        if argument.startswith("--"):
            flag, equals, value = argument.partition("=")
            found.setdefault(flag, []).extend([value] if equals else [])
        elif flag and (flag in _LISTS or not found[flag]) and flag not in _SWITCHES:
            found[flag].append(argument)
        else:
            raise CommandError(f"{argument}: a flag is expected here.", "Write the flags as the router takes them.")
    return found


def _several(values: list[str]) -> list[str]:
    # Behind a prefill worker's URL stands its bootstrap port.
    return [value.rstrip("/") for value in values if value.startswith(("http://", "https://"))]


def _commas(values: list[str]) -> list[str]:
    return [part.strip().rstrip("/") for value in values for part in value.split(",") if part.strip()]
