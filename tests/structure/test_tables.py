"""A new provider, engine or command is an entry of one table: nothing else lists their names."""

import re
from pathlib import Path

import pytest

from pointsman_core.config import load
from pointsman_edge.credentials.provider_credentials import Credentials
from pointsman_engines.dialect import ENGINES
from pointsman_providers.kind import ProviderKind
from pointsman_providers.kinds import KINDS
from pointsman_providers.openai import OpenAI
from pointsman_providers.resolve import check, resolve

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def far(monkeypatch: pytest.MonkeyPatch) -> ProviderKind:
    """A new kind of provider."""
    kind = ProviderKind(
        "far", lambda _: OpenAI(), lambda provider: f"https://{provider.region}.far.example/",
        needs=("region",), header=lambda secret: ("x-far-key", secret),
    )  # fmt: skip
    monkeypatch.setitem(KINDS, kind.name, kind)
    monkeypatch.setenv("FAR_KEY", "secret")
    return kind


async def test_a_kind_of_provider_in_the_table_is_configured_reached_and_authorized(far: ProviderKind) -> None:
    config = load({"providers": {"p": {"kind": "far", "region": "north", "credential": "env:FAR_KEY"}}})
    check(config)
    provider = resolve(config)["p"]
    assert (provider.kind, provider.url) == (far, "https://north.far.example")
    headers: dict[str, str] = {}
    await Credentials().add_credential(provider, provider.url, headers, b"{}")
    assert headers == {"x-far-key": "secret"}


def _product() -> list[Path]:
    return [path for top in ("contracts", "shared", "services") for path in (ROOT / top).rglob("pointsman_*/**/*.py")]


@pytest.mark.parametrize(
    ("names", "allowed"),
    [
        (("openai", "anthropic", "bedrock", "azure", "vertex"), set[str]()),
        (ENGINES, {"shared/engines/pointsman_engines/dialect.py"}),
    ],
    ids=["providers", "engines"],
)
def test_no_literal_lists_the_names_of_a_table(names: tuple[str, ...], allowed: set[str]) -> None:
    found: set[str] = set()
    for path in _product():
        for literal in re.findall(r"Literal\[([^\]]*)\]", path.read_text()):
            if sum(f'"{name}"' in literal for name in names) >= 3:
                found.add(path.relative_to(ROOT).as_posix())
    assert found <= allowed


def test_the_commands_of_the_cli_are_declared_in_its_apps() -> None:
    declaring = {
        path.name
        for path in (ROOT / "tools/cli/pointsman_cli").rglob("*.py")
        if re.search(r"^@\w+\.command\(", path.read_text(), re.MULTILINE)
    }
    named = {"batch_app.py", "config_app.py", "engine_app.py", "import_app.py", "key_app.py", "nats_app.py"}
    assert declaring == {"app.py", *named}
