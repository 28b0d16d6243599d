"""A test bench: makes a plugin as a service makes it, and the values that a service calls it with. Knows no bus.

limit = make(ToolCount, most=3)
request = incoming({"model": "m", "messages": [], "tools": []})
limit.process(request)
assert request.read(TOOL_COUNT) == 0
"""

from collections.abc import Mapping, Sequence
from typing import TypeVar

import orjson

from pointsman_apis.requests import parse
from pointsman_contracts.journey import Journey, PreprocessRequest, RequestFacts, Target
from pointsman_contracts.message import read_fields
from pointsman_contracts.worker import WorkerLoad, WorkerRegistration
from pointsman_core.plugins import Spec
from pointsman_plugins.guarding import Checked, CheckedText, Direction
from pointsman_plugins.plugin import Plugin
from pointsman_plugins.preprocessing import HeaderFacts, Incoming
from pointsman_plugins.registry import checked
from pointsman_plugins.scheduling.candidates import Candidates
from pointsman_plugins.scheduling.dice import Dice
from pointsman_plugins.scheduling.fleet import Fleet
from pointsman_plugins.selecting import Candidate

P = TypeVar("P", bound=Plugin)

NOW_S = 1000.0
"""Monotonic time of every value that is made here."""


def make(plugin: type[P], others: Mapping[str, Plugin] | None = None, /, **params: object) -> P:
    """An instance, named as its type, with these parameters as a configuration writes them. PluginError has the words
    that a service would refuse them with. `others`: the instances that parameters of type `Reference` name."""
    spec = Spec(plugin.type_name, plugin.type_name, params)
    return plugin(spec.name, checked(plugin, spec), others or {})


def incoming(
    body: Mapping[str, object],
    headers: Mapping[str, str] | None = None,
    path: str = "/v1/chat/completions",
) -> Incoming:
    """A request for a `RequestProcessor`. Names of headers are lower-case. Raises Refusal for a body that the gateway
    refuses."""
    sent = dict(headers or {})
    envelope = PreprocessRequest(
        request_id="request-1",
        edge="edge-1",
        received_ms=0,
        deadline_ms=60_000,
        revision=1,
        method="POST",
        path=path,
        headers=sent,
    )
    facts = HeaderFacts(sent)
    return Incoming(envelope, parse(path, orjson.dumps(dict(body))), facts)


def journey(model: str = "model", **facts: object) -> Journey:
    """A request for a `ProfilePicker`, or a model plugin. `facts`: members of `RequestFacts`, e.g. `attributes`."""
    known: dict[str, object] = {"api": "chat.completions", "path": "/v1/chat/completions", "prompt_tokens": 100}
    return Journey(
        request_id="request-1",
        edge="edge-1",
        received_ms=0,
        deadline_ms=60_000,
        revision=1,
        model=model,
        request=read_fields(RequestFacts, known | facts),
    )


def model(name: str, **facts: object) -> Candidate:
    """A model for a filter or scorer of models: free, of quality 0.5 and without limits, except for `facts`."""
    target = Target(model=name, pool=name)
    plain = Candidate(
        name=name,
        target=target,
        block_tokens=64,
        input_cost=0.0,
        output_cost=0.0,
        quality=0.5,
        context=None,
        features=frozenset(),
        apis=frozenset(),
        groups=frozenset(),
        strengths="",
    )
    return plain._replace(**facts)


def texts(*said: str, direction: Direction = "request", role: str = "user") -> Checked:
    """Texts for a `Detector`."""
    parts = [CheckedText(f"messages[{at}].content", role, text) for at, text in enumerate(said)]
    return Checked(direction, "default", "request-1", parts)


def fleet(workers: Mapping[str, Mapping[str, object]]) -> Fleet:
    """Workers that have registered and reported at `NOW_S`. By name: members of `WorkerRegistration` or `WorkerLoad`,
    e.g. `{"a": {"waiting": 3}, "b": {"labels": {"zone": "x"}}}`."""
    made = Fleet()
    for name, facts in workers.items():
        life: dict[str, object] = {"worker": name, "pool": "pool", "boot_id": "life-1"}
        identity: dict[str, object] = {
            "url": f"http://{name}:8000",
            "agent": f"agent-{name}",
            "version": "1",
            "registered_ms": 0,
            "block_tokens": 64,
            "kv_blocks": 1024,
        }
        registered = {key: value for key, value in facts.items() if key in WorkerRegistration.__struct_fields__}
        made.register(read_fields(WorkerRegistration, life | identity | registered))
        reported = {key: value for key, value in facts.items() if key in WorkerLoad.__struct_fields__}
        made.hear(read_fields(WorkerLoad, life | {"sequence": 1, "at_ms": 0} | reported), NOW_S)
    made.refresh(NOW_S)
    return made


def candidates(workers: Mapping[str, Mapping[str, object]], seed: int = 1) -> Candidates:
    """All workers of `fleet(workers)`, sorted by name. Dice of the same seed fall alike."""
    return Candidates(fleet(workers), NOW_S, Dice(seed))


def scores_by_name(found: Candidates, scores: Sequence[float]) -> dict[str, float]:
    """Worker's name → its score."""
    return {worker.name: float(score) for worker, score in zip(found.workers(), scores, strict=True)}
