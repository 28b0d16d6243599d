"""One name means one thing: a public class has a name that no other public class of the product has."""

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

ALLOWED = {
    "Handlers": "each service has one, in `handlers.py`",
    "ActiveRequests": "a scorer of models, and one of endpoints",
    "Answer": "of the bus, of Envoy and of a probe",
    "Band": "in the configuration, and compiled from it",
    "Call": "of gRPC, and of an engine's HTTP connection",
    "Decider": "asks the stages for a decision at the edge; an extension point of the scheduler",
    "EngineClient": "forwards requests at the edge; asks for metrics at the agent",
    "Parked": "on the bus, and what flow control keeps of it",
    "Peers": "schedulers beside this one, and the engines beside one",
    "Place": "of a worker, and of an answer",
    "ProtocolViolation": "of ext_proc, and of NATS",
    "ProviderAnswer": "behind Envoy, and over the frontend's own connection",
    "Reading": "of answers, and of an engine's state",
    "Service": "a row of the table of services, and the running one",
    "Standing": "of an engine by its answers, and of engines on the console's page",
    "Tally": "of messages, and of answers",
}
"""Name → why it occurs more than once."""


def _public_classes() -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for top in ("contracts", "shared", "services", "tools"):
        for file in (ROOT / top).rglob("*.py"):
            parts = file.relative_to(ROOT).parts
            if "tests" in parts or not any(part.startswith("pointsman_") for part in parts):
                continue
            for node in ast.parse(file.read_text()).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    found[node.name].append("/".join(parts))
    return found


def test_a_class_name_is_used_once_or_has_a_reason() -> None:
    twice = {name: files for name, files in _public_classes().items() if len(files) > 1 and name not in ALLOWED}
    assert not twice


def test_a_reason_is_kept_only_for_a_name_that_occurs_more_than_once() -> None:
    found = _public_classes()
    assert not [name for name in ALLOWED if len(found[name]) < 2]
