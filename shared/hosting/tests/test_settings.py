"""Settings: strict, from the environment and a file, and never an open door by accident."""

from pathlib import Path

import pytest
from pydantic import Field

from pointsman_contracts.timing import DEFAULTS, TIMES
from pointsman_hosting.host import Host
from pointsman_runtime.configuring.settings import FILE_VARIABLE, ServiceSettings, SettingsError, load
from pointsman_runtime.telling.process import Process


class Settings(ServiceSettings):
    block: int = Field(default=3, ge=1)
    names: tuple[int, ...] = ()
    labels: dict[str, str] = Field(default_factory=dict[str, str])


def test_the_environment_goes_before_the_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "settings.yaml"
    path.write_text("block: 7\nhttp_port: 8001\n")
    monkeypatch.setenv(FILE_VARIABLE, str(path))
    monkeypatch.setenv("POINTSMAN_HTTP_PORT", "8002")
    settings = load(Settings)
    assert (settings.block, settings.http_port) == (7, 8002)


def test_an_unknown_key_in_the_file_names_the_known_ones(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "settings.yaml"
    path.write_text("blocks: 7\n")
    monkeypatch.setenv(FILE_VARIABLE, str(path))
    with pytest.raises(SettingsError, match=r"blocks: unknown setting; the known ones are .*nats_url.*block"):
        load(Settings)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"- block\n- 7\n", "write settings as `name: value`, one per line"),
        (b"block", "write settings as `name: value`, one per line"),
        (b"block: [", "not valid YAML: "),
        (b"block: 2026-13-01", "not valid YAML: month must be in 1..12"),
        (b"block: 7 # \xff", "the file is not UTF-8 text"),
        (b"1: 7", "1: unknown setting; the known ones are"),
        (None, "no such file or directory"),
    ],
)
def test_a_file_that_has_no_settings_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: bytes | None, words: str
) -> None:
    path = tmp_path / "settings.yaml"
    if content is not None:
        path.write_bytes(content)
    monkeypatch.setenv(FILE_VARIABLE, str(path))
    with pytest.raises(SettingsError) as caught:
        load(Settings)
    assert words in str(caught.value)
    assert "1:" in words or str(path) in str(caught.value)


def test_an_empty_file_says_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "settings.yaml"
    path.touch()
    monkeypatch.setenv(FILE_VARIABLE, str(path))
    assert load(Settings).block == 3


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("POINTSMAN_BLOCK", "0", "block (POINTSMAN_BLOCK)"),
        ("POINTSMAN_LOG_FORMAT", "xml", "'json' or 'human'"),
        ("POINTSMAN_NATS_URL", "nats://nats.example:4222", "nats.example is not this host"),
        ("POINTSMAN_NATS_URL", "nats://127.0.0.1:4222,nats://10.0.0.1:4222", "10.0.0.1 is not this host"),
        ("POINTSMAN_NATS_URL", "http://127.0.0.1:4222", "nats_url (POINTSMAN_NATS_URL): http://127.0.0.1:4222: "),
        ("POINTSMAN_NATS_URL", "127.0.0.1:4222", "127.0.0.1:4222: a server's URL must begin with nats:// or tls://"),
        ("POINTSMAN_NATS_URL", "garbage://u:canary@", "garbage://: a server's URL must begin with"),
        (
            "POINTSMAN_NATS_URL",
            "nats://u:canary@127.0.0.1:x",
            "nats://127.0.0.1:x: the port must be a number from 1 to 65535",
        ),
        ("POINTSMAN_NATS_URL", "nats://127.0.0.1:99999", "nats://127.0.0.1:99999: the port must be"),
        ("POINTSMAN_NATS_URL", "nats://127.0.0.1:0", "nats://127.0.0.1:0: the port must be"),
        ("POINTSMAN_NATS_URL", "nats://:4222", "nats://:4222: no host"),
        ("POINTSMAN_NATS_URL", "nats://[::1", "nats://[::1: no host"),
        ("POINTSMAN_NATS_URL", " , ", "no server is named; e.g. nats://127.0.0.1:4222"),
        ("POINTSMAN_NATS_CREDENTIALS_FILE", "/nowhere.creds", "(POINTSMAN_NATS_CREDENTIALS_FILE): /nowhere.creds: "),
        ("POINTSMAN_HTTP_HOST", "::", "asks for no credential"),
        ("POINTSMAN_NAMES", "1, 2", 'names (POINTSMAN_NAMES): Input should be a list, in JSON: ["a", "b"]'),
        ("POINTSMAN_NAMES", "", "names (POINTSMAN_NAMES): Input should be a list, in JSON"),
        ("POINTSMAN_NAMES", '[1, "b"]', "names (POINTSMAN_NAMES): 1: Input should be a valid integer"),
        ("POINTSMAN_LABELS", "rack=1", "labels (POINTSMAN_LABELS): Input should be a section of keys, in JSON: {"),
        ("POINTSMAN_DRAIN_TIMEOUT_S", "inf", "Input should be a finite number"),
        ("POINTSMAN_OTLP_ENDPOINT", "127.0.0.1:4318", "the base URL of a collector is e.g. http://127.0.0.1:4318"),
        ("POINTSMAN_OTLP_ENDPOINT", "http://", "the base URL of a collector is e.g."),
    ],
)
def test_a_wrong_setting_is_explained_in_words(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, words: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError) as caught:
        load(Settings)
    assert words in str(caught.value)
    assert "canary" not in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "env",
    [
        {"POINTSMAN_NATS_URL": "nats://10.0.0.1:4222", "POINTSMAN_NATS_TOKEN": "t"},
        {"POINTSMAN_NATS_URL": "nats://10.0.0.1:4222", "POINTSMAN_NATS_USER": "u", "POINTSMAN_NATS_PASSWORD": "p"},
        {"POINTSMAN_NATS_URL": "nats://10.0.0.1:4222", "POINTSMAN_NATS_CREDENTIALS_FILE": __file__},
        {"POINTSMAN_NATS_URL": "nats://u:p@10.0.0.1:4222"},
        {"POINTSMAN_NATS_URL": "nats://10.0.0.1:4222", "POINTSMAN_NATS_INSECURE": "true"},
        {"POINTSMAN_NATS_URL": "nats://localhost:4222,nats://[::1]:4222"},
        {"POINTSMAN_HTTP_HOST": "0.0.0.0", "POINTSMAN_HTTP_OPEN": "true"},  # noqa: S104 - asked for
    ],
)
def test_a_door_is_open_with_credentials_or_when_asked_for(
    monkeypatch: pytest.MonkeyPatch, env: dict[str, str]
) -> None:
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    load(Settings)


def test_secrets_are_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POINTSMAN_NATS_TOKEN", "canary")
    monkeypatch.setenv("POINTSMAN_NATS_USER", "user")
    monkeypatch.setenv("POINTSMAN_NATS_PASSWORD", "canary")
    settings = load(Settings)
    assert "canary" not in repr(settings)
    assert "canary" not in repr(settings.nats_login)
    assert settings.nats_login.token == "canary"  # noqa: S105 - the canary


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ({"CA": "/nowhere.pem"}, "nats_tls_ca (POINTSMAN_NATS_TLS_CA): /nowhere.pem: no such file or directory"),
        ({"CA": __file__}, f"nats_tls_ca (POINTSMAN_NATS_TLS_CA): {__file__}: no certificate or crl found"),
        ({"CERT": __file__}, f"nats_tls_cert (POINTSMAN_NATS_TLS_CERT): {__file__}: "),
        ({"KEY": __file__}, "nats_tls_key (POINTSMAN_NATS_TLS_KEY): it needs nats_tls_cert too"),
    ],
)
def test_a_file_for_tls_that_is_of_no_use_is_named(
    monkeypatch: pytest.MonkeyPatch, env: dict[str, str], words: str
) -> None:
    for name, value in env.items():
        monkeypatch.setenv(f"POINTSMAN_NATS_TLS_{name}", value)
    with pytest.raises(SettingsError) as caught:
        load(Settings).nats_tls()
    assert words in str(caught.value)


def test_every_process_has_an_instance_name_of_its_own() -> None:
    assert load(Settings).instance != load(Settings).instance


def test_intervals_that_do_not_fit_together_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POINTSMAN_REPORT_S", "3")
    with pytest.raises(SettingsError, match=r"announce_s: 2 s is less than report_s \(3 s\)"):
        load(Settings)
    monkeypatch.setenv("POINTSMAN_ANNOUNCE_S", "5")
    assert load(Settings).times["report_s"] == 3.0


def test_a_process_takes_its_times_from_its_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POINTSMAN_BEAT_S", "0.5")
    settings = load(Settings)
    try:
        Host(Process("scheduler", "scheduler-1"), settings)
        assert TIMES.service_silent_s == pytest.approx(1.5)
    finally:
        TIMES.set(DEFAULTS)
