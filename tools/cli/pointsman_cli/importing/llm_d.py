"""The configuration of llm-d's endpoint picker, an EndpointPickerConfig (https://llm-d.ai)."""

from typing import Final

from pointsman_cli.importing.imported import Document, Imported, listed, loaded, mapping
from pointsman_cli.words import CommandError

_KINDS: Final = ("EndpointPickerConfig",)
_FILTERS: Final = {
    "label-selector-filter": "label-selector",
    "by-label-selector": "label-selector",
    "decode-filter": "role",
    "prefill-filter": "role",
    "encode-filter": "role",
    "prefix-cache-affinity-filter": "prefix-affinity",
    "slo-headroom-tier-filter": "slo-headroom",
    "session-affinity-filter": "session",
    "context-length-aware": "context-length",
}
_SCORERS: Final = {
    "queue-scorer": "queue",
    "running-requests-size-scorer": "running",
    "kv-cache-utilization-scorer": "kv-utilization",
    "prefix-cache-scorer": "prefix-cache",
    "precise-prefix-cache-scorer": "prefix-cache",
    "lora-affinity-scorer": "lora-affinity",
    "load-aware-scorer": "load-aware",
    "token-load-scorer": "token-load",
    "active-request-scorer": "active-requests",
    "no-hit-lru-scorer": "no-hit-lru",
    "latency-scorer": "latency",
    "session-affinity-scorer": "session",
}
_PICKERS: Final = {
    "max-score-picker": "max-score",
    "random-picker": "random",
    "weighted-random-picker": "weighted-random",
}
_POLICIES: Final = {
    "fcfs-ordering-policy": "fcfs",
    "edf-ordering-policy": "edf",
    "slo-deadline-ordering-policy": "slo-deadline",
    "global-strict-fairness-policy": "global-strict",
    "round-robin-fairness-policy": "round-robin",
    "program-aware-fairness": "least-attained-service",
    "utilization-detector": "utilization",
    "concurrency-detector": "concurrency",
}
_HANDLERS: Final = {
    "disagg-profile-handler": "disaggregated",
    "pd-profile-handler": "disaggregated",
    "header-profile-handler": "header-named",
}
_PARAMETERS: Final = {
    ("prefix-cache", "matchLengthWeight"): "match_length_weight",
    ("prefix-cache", "matchLengthScaleTokens"): "match_length_scale",
    ("load-aware", "threshold"): "threshold",
    ("token-load", "queueThresholdTokens"): "threshold",
    ("active-requests", "idleThreshold"): "idle_threshold",
    ("active-requests", "maxBusyScore"): "max_busy_score",
    ("latency", "ttftWeight"): "ttft_weight",
    ("latency", "tpotWeight"): "itl_weight",
    ("prefix-affinity", "affinityThreshold"): "threshold",
    ("prefix-affinity", "explorationProbability"): "exploration",
    ("slo-headroom", "epsilonExploreNeg"): "exploration",
    ("label-selector", "matchLabels"): "match_labels",
    ("label-selector", "matchExpressions"): "match_expressions",
    ("utilization", "queueDepthThreshold"): "queue",
    ("utilization", "kvCacheUtilThreshold"): "kv",
    ("concurrency", "maxConcurrency"): "max_requests",
    ("max-score", "maxNumOfEndpoints"): "endpoints",
    ("random", "maxNumOfEndpoints"): "endpoints",
    ("weighted-random", "maxNumOfEndpoints"): "endpoints",
    ("header-named", "headerName"): "header",
    ("header-named", "defaultProfile"): "default",
}
"""Plugin of ours and their parameter → our parameter."""
_NOT_NEEDED: Final = {
    "single-profile-handler": "not needed: it is the default",
    "openai-parser": "not needed: every API is read",
    "approx-prefix-cache-producer": "not needed: it is always there; the block size is pools.*.block_tokens",
    "precise-prefix-cache-producer": "not needed: agents read the KV events of engines; give the pool a tokenizer",
    "inflight-load-producer": "not needed: the scheduler counts what is open",
    "token-producer": "not needed: give the pool a tokenizer for exact counts",
    "session-id-producer": "not needed: edges read the session",
    "predicted-latency-producer": "the observers delay-prediction and latency-prediction learn by themselves",
    "metrics-data-source": "not needed: agents and the metrics-collector read engines",
    "core-metrics-extractor": "not needed: agents and the metrics-collector read engines",
    "models-data-source": "not needed: agents and the metrics-collector read engines",
}


class _Reader:
    def __init__(self, document: Document) -> None:
        self.made: Final = Imported()
        self._document: Final = document
        self._plugins: Final[dict[str, Document]] = {}
        self._used: Final[set[str]] = set()

    def read(self) -> None:
        """The whole file."""
        for number, entry in enumerate(listed(self._document.get("plugins"), "plugins")):
            plugin = mapping(entry, f"plugins.{number}")
            self._plugins[str(plugin.get("name") or plugin.get("type"))] = plugin
        policy: Document = {}
        profiles: dict[str, Document] = {}
        for number, entry in enumerate(listed(self._document.get("schedulingProfiles"), "schedulingProfiles")):
            profile = mapping(entry, f"schedulingProfiles.{number}")
            profiles[str(profile.get("name") or "default")] = self._profile(profile)
        handler = self._handler()
        if handler is not None:
            policy["handler"] = handler
        policy["profiles"] = profiles or {"default": {}}
        policy["flow_control"] = self._flow_control()
        self.made.document["pools"] = {
            "engines": {"discovery": "kubernetes", "kubernetes": {"inference_pool": "CHANGE-ME"}}
        }
        self.made.document["scheduling"] = {"default": policy}
        self.made.note_ignored("pools", "write the name of your InferencePool in the place of CHANGE-ME")
        for name, plugin in self._plugins.items():
            if name not in self._used:
                kind = str(plugin.get("type"))
                self.made.note_ignored(f"plugins.{name}", _NOT_NEEDED.get(kind, f"{kind} has no equivalent"))
        known = {"apiVersion", "kind", "plugins", "schedulingProfiles", "flowControl", "featureGates"}
        for section in sorted(self._document.keys() - known):
            self.made.note_ignored(section, "not needed: the facts about engines and requests are read automatically")

    def _profile(self, profile: Document) -> Document:
        filters: list[object] = ["healthy", "subset"]
        scorers: list[object] = []
        made: Document = {"filters": filters, "scorers": scorers}
        for entry in listed(profile.get("plugins"), "schedulingProfiles.plugins"):
            use = mapping(entry, "schedulingProfiles.plugins")
            name = str(use.get("pluginRef"))
            kind = self._kind(name)
            self._used.add(name)
            if kind in _FILTERS:
                filters.append(self._translated(name, _FILTERS[kind]))
            elif kind in _SCORERS:
                scorers.append({**self._translated(name, _SCORERS[kind]), "weight": use.get("weight", 1)})
            elif kind in _PICKERS:
                made["picker"] = self._translated(name, _PICKERS[kind])
            else:
                self.made.note_ignored(f"schedulingProfiles.{name}", f"{kind} has no equivalent")
        return made

    def _handler(self) -> Document | None:
        for name, plugin in self._plugins.items():
            ours = _HANDLERS.get(str(plugin.get("type")))
            if ours is None:
                continue
            self._used.add(name)
            if ours == "disaggregated":
                self.made.note_ignored(
                    f"plugins.{name}", "set the deciders of the handler `disaggregated` (docs/configuration.md)"
                )
                return {"use": ours}
            return self._translated(name, ours)
        return None

    def _flow_control(self) -> Document:
        gates = [str(gate) for gate in listed(self._document.get("featureGates"), "featureGates")]
        if "flowControl" not in gates and "flowControl=true" not in gates:
            self.made.note_ignored(
                "featureGates", "without flowControl, requests never wait in the picker; flow control is off here too"
            )
            return {"enabled": False}
        theirs = mapping(self._document.get("flowControl"), "flowControl")
        made: Document = {}
        for key, ours in (("maxRequests", "max_requests"), ("maxBytes", "max_bytes"), ("defaultRequestTTL", "ttl"),
                          ("noEndpointRequestTTL", "no_endpoint_ttl")):  # fmt: skip
            if key in theirs:
                made[ours] = _size(theirs.pop(key))
        detector = mapping(theirs.pop("saturationDetector", None), "flowControl.saturationDetector").get("pluginRef")
        if detector is not None:
            made["detector"] = self._policy(str(detector))
        for key, ours in (("defaultPriorityBand", "default_band"), ("defaultNegativePriorityBand", "negative_band")):
            if key in theirs:
                made[ours] = self._band(mapping(theirs.pop(key), f"flowControl.{key}"))
        bands = {
            _number(band.get("priority")): self._band(band)
            for band in (
                mapping(each, "flowControl.priorityBands")
                for each in listed(theirs.pop("priorityBands", None), "flowControl.priorityBands")
            )
        }
        if bands:
            made["bands"] = bands
        for key in sorted(theirs):
            self.made.note_ignored(f"flowControl.{key}", "has no equivalent")
        return made

    def _band(self, band: Document) -> Document:
        made: Document = {}
        for key, ours in (("maxRequests", "max_requests"), ("maxBytes", "max_bytes")):
            if key in band:
                made[ours] = _size(band[key])
        for key, ours in (("fairnessPolicyRef", "fairness"), ("orderingPolicyRef", "ordering")):
            if key in band:
                made[ours] = self._policy(str(band[key]))
        return made

    def _policy(self, name: str) -> Document:
        kind = self._kind(name)
        self._used.add(name)
        ours = _POLICIES.get(kind)
        if ours is None:
            raise CommandError(f"plugins.{name}: {kind} has no equivalent.", f"There are {', '.join(_POLICIES)}.")
        return self._translated(name, ours)

    def _kind(self, name: str) -> str:
        plugin = self._plugins.get(name)
        return name if plugin is None else str(plugin.get("type"))

    def _translated(self, name: str, ours: str) -> Document:
        """A plugin of ours with the parameters that it has too."""
        made: Document = {"use": ours}
        plugin = self._plugins.get(name, {})
        for key, value in mapping(plugin.get("parameters"), f"plugins.{name}.parameters").items():
            known = _PARAMETERS.get((ours, key))
            if known is None:
                self.made.note_ignored(f"plugins.{name}.parameters.{key}", f"{ours} has no such parameter")
            else:
                made[known] = value.lower() if key == "headerName" and isinstance(value, str) else value
        if ours == "role":
            made |= {"role": self._kind(name).removesuffix("-filter"), "name": name}
        return made


def read(text: str, source: str) -> Imported:
    """The configuration that picks endpoints as this one does. CommandError for a text that isn't one."""
    document = loaded(text, source)
    if document.get("kind") not in _KINDS:
        raise CommandError(f"{source} isn't an EndpointPickerConfig.", "Its `kind` says so; other objects aren't read.")
    reader = _Reader(document)
    reader.read()
    return reader.made


def _number(value: object) -> int:
    if not isinstance(value, int):
        raise CommandError("flowControl.priorityBands: a band needs a whole number as its priority.")
    return value


def _size(value: object) -> object:
    """Kubernetes' quantities as ours: `10Gi` is `10GiB`, `1G` is `1GB`."""
    return f"{value}B" if isinstance(value, str) and value[-1:] in "iGMKk" and value[-1:] else value
