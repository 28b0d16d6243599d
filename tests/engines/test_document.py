"""docs/engines.md says what was found."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_document_is_what_the_results_say() -> None:
    script = ROOT / "scripts/write_engines_document.py"
    ran = subprocess.run([sys.executable, str(script), "--check"], check=False)
    assert ran.returncode == 0, "run: make generate"
