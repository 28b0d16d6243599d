"""Which services a bundle has, and what each is set to."""

import os
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from pointsman_bundle.main import GROUP, assembled, main
from pointsman_runtime.configuring.settings import SettingsError, load

PROGRAMS = {found.name: found.load() for found in entry_points(group=GROUP)}


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("POINTSMAN_")]:
        monkeypatch.delenv(name)


def test_a_setting_of_one_service_wins_over_the_one_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POINTSMAN_PORT", "1111")
    monkeypatch.setenv("POINTSMAN_EPP_ADAPTER_PORT", "2222")
    ports = {name: load(PROGRAMS[name].settings, name).port for name in ("frontend", "epp-adapter")}
    assert ports == {"frontend": 1111, "epp-adapter": 2222}


def test_every_member_is_the_instance_that_the_process_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POINTSMAN_INSTANCE", "one")
    settings, members = assembled([PROGRAMS["frontend"], PROGRAMS["scheduler"]])
    assert settings.instance == "one"
    assert [member.name for member in members] == ["frontend", "scheduler"]


def test_a_file_of_settings_may_name_those_of_every_service_of_the_bundle(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "settings.yaml"
    monkeypatch.setenv("POINTSMAN_SETTINGS", str(file))
    file.write_text("port: 1234\nrecorder_name: mine\n")
    assembled([PROGRAMS["frontend"], PROGRAMS["recorder"]])
    with pytest.raises(SettingsError, match="recorder_name"):
        assembled([PROGRAMS["frontend"], PROGRAMS["scheduler"]])


def test_each_agent_of_the_list_is_a_member_with_settings_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(
        "POINTSMAN_AGENTS",
        '[{"engine_url": "http://e1:8000", "pool": "p"}, {"engine_url": "http://e2:8000", "pool": "p"}]',
    )
    _, members = assembled([PROGRAMS["worker-agent"]])
    assert [member.name for member in members] == ["worker-agent"] * 2
    monkeypatch.setenv("POINTSMAN_AGENTS", '[{"engine_url": "nowhere", "pool": "p"}]')
    with pytest.raises(SettingsError, match="engine_url"):
        assembled([PROGRAMS["worker-agent"]])


def test_an_unknown_service_is_refused_naming_those_that_are_installed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["frontend", "schedulr"])
    assert ended.value.code == 2
    told = capsys.readouterr().err
    assert "schedulr" in told
    assert "scheduler" in told
