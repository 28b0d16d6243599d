"""Code, schemas and documents cite only documents that the repository has."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SUFFIXES = (".py", ".md", ".json", ".yaml", ".yml", ".toml")


def _files() -> list[str]:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, check=False, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a git checkout")
    return [line for line in listed.stdout.splitlines() if line.endswith(SUFFIXES) and (ROOT / line).exists()]


def test_a_section_is_cited_only_of_a_document_that_the_repository_has() -> None:
    missing = [
        f"{name}: {document}"
        for name in _files()
        for document in re.findall(r"([\w-]+\.md) §", (ROOT / name).read_text(encoding="utf-8"))
        if not list((ROOT / "docs").rglob(document))
    ]
    assert missing == []
