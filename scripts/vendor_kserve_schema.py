"""Makes tests/deploy/schemas/kserve.json: the schema of KServe's LLMInferenceService, without its words.

    python scripts/vendor_kserve_schema.py CRD

`CRD` is config/crd/full/llmisvc/serving.kserve.io_llminferenceservices.yaml of kserve/kserve (Apache License 2.0). Pods
refer to the definition in objects.json; members of the specification that deploy/kserve doesn't use keep their names
alone.
"""

import json
import sys
from pathlib import Path
from typing import Any, Final

import yaml
from vendor_schemas import TARGET, closed

VERSION: Final = "v1alpha2"
USED: Final = frozenset({"annotations", "labels", "model", "replicas", "template"})
POD: Final = "io.k8s.api.core.v1.PodSpec"


def main() -> int:
    """Write the file; returns the exit code."""
    crd = yaml.load(Path(sys.argv[1]).read_text(encoding="utf-8"), yaml.CSafeLoader)["spec"]
    found = next(each for each in crd["versions"] if each["name"] == VERSION)
    schema: dict[str, Any] = found["schema"]["openAPIV3Schema"]
    schema["properties"]["metadata"] = {}
    spec = schema["properties"]["spec"]["properties"]
    for name in spec:
        if name not in USED:
            spec[name] = {}
    spec["template"] = {"$ref": f"#/definitions/{POD}"}
    schema["properties"]["status"] = {}
    document = {"kind": f"{crd['group']}/{VERSION} {crd['names']['kind']}", "schema": closed(schema)}
    target = TARGET.with_name("kserve.json")
    target.write_text(json.dumps(document, sort_keys=True, separators=(",", ":")) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
