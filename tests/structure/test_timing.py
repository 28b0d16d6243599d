"""When a service, a worker or a snapshot counts as silent is written in one file."""

import ast
from pathlib import Path

from pointsman_core.config import EdgeSettings
from pointsman_runtime.bus.backoff import CAP_S, OUTSTANDING_PINGS, PING_INTERVAL_S

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = [
    path for top in ("contracts", "shared", "services", "tools") for path in (ROOT / top).rglob("pointsman_*/**/*.py")
]


def test_no_module_keeps_a_copy_of_a_time() -> None:
    """A constant of a module is made before the settings are read."""
    copies: list[str] = []
    for path in PRODUCT:
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
                copies += [
                    f"{path.relative_to(ROOT)}:{node.lineno}"
                    for part in ast.walk(node.value)
                    if isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name) and part.value.id == "TIMES"
                ]
    assert copies == []


def test_no_other_file_says_after_which_silence_something_is_dead() -> None:
    names = ("SILENT_AFTER_S", "OLD_AFTER_S", "LOST_AFTER_S", "LAPSES_AFTER_S", "BEAT_S")
    found = [
        f"{path.relative_to(ROOT)}: {node.target.id}"
        for path in PRODUCT
        if path.name != "timing.py"
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id in names
    ]
    assert found == []


def test_a_server_that_stopped_is_noticed_before_requests_give_up_the_stages_behind_it() -> None:
    """Its clients connect to another server within `CAP_S`, and are heard again."""
    assert EdgeSettings().silent_wait >= (OUTSTANDING_PINGS + 1) * PING_INTERVAL_S + CAP_S
