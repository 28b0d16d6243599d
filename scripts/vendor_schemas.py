"""Makes tests/deploy/schemas/objects.json: the schemas of the Kubernetes objects that deploy/ has, without their words.

    python scripts/vendor_schemas.py DEFINITIONS CRD…

`DEFINITIONS` is `kubernetes-json-schema/v1.34.0-local/_definitions.json` of the distribution kubernetes-validate. Each
`CRD` is a CustomResourceDefinition of a Go module: sigs.k8s.io/gateway-api v1.4.0 (config/crd/standard),
sigs.k8s.io/gateway-api-inference-extension v1.2.0 (config/crd/bases), or of the Prometheus operator
v0.85.0 (example/prometheus-operator-crd). All of them are under the Apache License 2.0.
"""

import json
import sys
from pathlib import Path
from typing import Final, cast

import yaml
from pydantic import JsonValue

TARGET: Final = Path(__file__).resolve().parent.parent / "tests/deploy/schemas/objects.json"
KINDS: Final = {
    "io.k8s.api.apps.v1": ("Deployment", "StatefulSet"),
    "io.k8s.api.autoscaling.v2": ("HorizontalPodAutoscaler",),
    "io.k8s.api.batch.v1": ("Job",),
    "io.k8s.api.core.v1": ("ConfigMap", "Secret", "Service", "ServiceAccount"),
    "io.k8s.api.networking.v1": ("NetworkPolicy",),
    "io.k8s.api.policy.v1": ("PodDisruptionBudget",),
    "io.k8s.api.rbac.v1": ("Role", "RoleBinding"),
}
_WORDS: Final = frozenset({"description", "title"})

_METADATA: Final = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
_GROUPS: Final = {"core": "", "networking": "networking.k8s.io/", "rbac": "rbac.authorization.k8s.io/"}
"""How the groups whose names differ from their package's begin an apiVersion."""

Schema = dict[str, JsonValue]


def closed(value: JsonValue, *, fields: bool = False) -> JsonValue:
    """Without words, and with objects closed to fields that they don't name. `fields`: keys are names of fields."""
    if isinstance(value, list):
        return [closed(each) for each in value]
    if not isinstance(value, dict):
        return value
    if fields:
        return {key: closed(each) for key, each in value.items()}
    if value.get("x-kubernetes-int-or-string"):
        return {"type": ["integer", "string"]}
    kept = {
        key: closed(each, fields=key == "properties")
        for key, each in value.items()
        if key not in _WORDS and not key.startswith("x-kubernetes")
    }
    return {"additionalProperties": False, **kept} if "properties" in kept else kept


def references(value: JsonValue) -> set[str]:
    """Names of the definitions that a schema refers to."""
    if isinstance(value, list):
        return {name for each in value for name in references(each)}
    if not isinstance(value, dict):
        return set()
    own = value.get("$ref")
    found = {own.rpartition("/")[2]} if isinstance(own, str) else set[str]()
    return found | {name for each in value.values() for name in references(each)}


def main() -> int:
    """Write the file; returns the exit code."""
    definitions = cast("dict[str, Schema]", json.loads(Path(sys.argv[1]).read_text())["$defs"])
    wanted = {f"{group}.{kind}" for group, kinds in KINDS.items() for kind in kinds}
    kept: Schema = {}
    while missing := wanted - set(kept):
        for name in missing:
            kept[name] = json.loads(json.dumps(closed(definitions[name])).replace("#/$defs/", "#/definitions/"))
            wanted |= references(kept[name])
    kinds: Schema = {
        f"{_GROUPS.get(group.split('.')[3], group.split('.')[3] + '/')}{group.split('.')[4]} {kind}": f"{group}.{kind}"
        for group, names in KINDS.items()
        for kind in names
    }
    for path in sys.argv[2:]:
        crd = yaml.safe_load(Path(path).read_text())["spec"]
        for version in crd["versions"]:
            name = f"{crd['group']}/{version['name']} {crd['names']['kind']}"
            schema = version["schema"]["openAPIV3Schema"]
            schema["properties"]["metadata"] = {"$ref": f"#/definitions/{_METADATA}"}
            kept[name], kinds[name] = closed(schema), name
    TARGET.write_text(json.dumps({"kinds": kinds, "definitions": kept}, sort_keys=True, separators=(",", ":")) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
