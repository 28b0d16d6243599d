"""docs/apis.md lists the APIs that there are."""

import re
from pathlib import Path

from pointsman_apis import APIS, READ

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "apis.md").read_text(encoding="utf-8")


def test_every_api_has_its_row_with_its_paths_methods_and_what_is_done_with_its_body() -> None:
    rows = {row[0]: row for row in (re.findall(r"[^|]+", line) for line in PAGE.splitlines() if line.startswith("| `"))}
    told = {name.strip(" `"): row for name, row in rows.items()}
    assert told.keys() == {api.name for api in APIS}
    for api in APIS:
        _, paths, request, _, cached, _ = (cell.strip() for cell in told[api.name])
        assert all(path in paths for path in (api.path, *api.also))
        assert all(method in paths for method in api.methods)
        kinds = {"json": "read" if api in READ else "passes", "form": "form", "none": "no body"}
        assert request == kinds[api.body]
        assert cached == ("yes" if api.complete else "no")
