"""`pointsman nats`: passwords are made once and never shown, and every subject comes from the contracts."""

from pathlib import Path

import bcrypt
import pytest
import yaml
from typer.testing import CliRunner

from pointsman_cli.app import app
from pointsman_cli.keys import accounts, logins
from pointsman_cli.keys.permissions import AgentIdentity, of_agent, of_service
from pointsman_cli.words import CommandError
from pointsman_contracts.parties import OWN_NAMES
from pointsman_contracts.subjects import former_token, token

ROOT = Path(__file__).resolve().parents[3]
ENGINE = AgentIdentity("llama-8b", "engine-1")


def test_the_committed_permissions_are_those_of_the_contracts() -> None:
    """After a change of parties or messages: pointsman nats permissions > deploy/nats/permissions.conf."""
    assert (ROOT / "deploy/nats/permissions.conf").read_text() == accounts.permissions()


def test_no_third_party_stage_can_have_a_login_of_ours() -> None:
    assert {*accounts.LOGINS, accounts.SYSTEM} <= OWN_NAMES


def test_passwords_that_exist_stay_and_new_logins_get_theirs(tmp_path: Path) -> None:
    logins.write(tmp_path, [], [], kubernetes=False)
    first = (tmp_path / "credentials/frontend.env").read_text()
    logins.write(tmp_path, [ENGINE], ["size-limit"], kubernetes=False)
    assert (tmp_path / "credentials/frontend.env").read_text() == first
    assert (tmp_path / "credentials/worker-agent.llama-8b.engine-1.env").exists()
    assert (tmp_path / "credentials/size-limit.env").exists()


def test_the_server_is_given_hashes_and_never_a_password(tmp_path: Path) -> None:
    logins.write(tmp_path, [ENGINE], [], kubernetes=False)
    users = (tmp_path / "users.conf").read_text()
    for path in (tmp_path / "credentials").iterdir():
        user, password = (line.partition("=")[2] for line in path.read_text().splitlines())
        assert len(password) >= 43  # 256 bits
        assert password not in users
        [line] = [line for line in users.splitlines() if f'user: "{user}"' in line]
        assert bcrypt.checkpw(password.encode(), line.partition('password: "')[2].partition('"')[0].encode())


def test_no_other_user_of_the_host_reads_what_was_written(tmp_path: Path) -> None:
    for path in logins.write(tmp_path, [], [], kubernetes=True):
        assert path.stat().st_mode & 0o077 == 0
    assert (tmp_path / "credentials").stat().st_mode & 0o077 == 0


def test_each_secret_of_kubernetes_has_one_login_or_the_servers_hashes(tmp_path: Path) -> None:
    logins.write(tmp_path, [ENGINE], [], kubernetes=True)
    secrets = {
        each["metadata"]["name"]: each["stringData"]
        for each in yaml.safe_load_all((tmp_path / "secrets.yaml").read_text())
    }
    assert set(secrets["pointsman-nats-users"]) == {"users.conf", "permissions.conf"}
    assert secrets["pointsman-nats-frontend"]["POINTSMAN_NATS_USER"] == "frontend"
    agent = yaml.safe_load(secrets["pointsman-nats-agents"]["llama-8b.engine-1"])
    assert agent["nats_user"] == "worker-agent/llama-8b/engine-1"


def test_a_foreign_stage_cannot_take_a_name_of_the_project(tmp_path: Path) -> None:
    for name in ("scheduler", "operator", "worker-agent", "system"):
        with pytest.raises(CommandError, match="the name of a service or login of Pointsman"):
            logins.write(tmp_path, [], [name], kubernetes=False)


def test_a_password_stays_that_was_kept_in_a_file_with_its_former_name(tmp_path: Path) -> None:
    agent = logins.worker("llama-3.1/engine-1")
    logins.write(tmp_path, [agent], [], kubernetes=False)
    now = tmp_path / "credentials" / f"worker-agent.{token('llama-3.1')}.engine-1.env"
    written = now.read_text()
    now.rename(now.with_name(f"worker-agent.{former_token('llama-3.1')}.engine-1.env"))
    logins.write(tmp_path, [agent], [], kubernetes=False)
    assert now.read_text() == written


def test_a_worker_is_named_with_its_pool() -> None:
    assert logins.worker("llama-8b/engine-1") == ENGINE
    for text in ("llama-8b", "/engine-1", "llama-8b/", "*/engine-1", "llama-8b/>"):
        with pytest.raises(CommandError, match="not a pool and a worker"):
            logins.worker(text)


def test_no_name_of_a_worker_widens_what_its_agent_may_do() -> None:
    allowed = of_agent(AgentIdentity("a.*", "engine-1.>"))
    assert len(allowed.publish) == len(of_agent(ENGINE).publish)
    wild = [one for one in allowed.publish if {"*", ">"} & set(one.split("."))]
    assert wild == ["pm.sig.service.presence.v1.worker-agent.*"]
    with pytest.raises(ValueError, match="one worker"):
        AgentIdentity("llama-8b", "*")


def test_stages_hand_on_to_foreign_stages_only_where_there_are_some() -> None:
    assert "pm.rpc.request.size-limit.v1" in of_service("profile-picker", ["size-limit"]).publish
    assert "pm.rpc.response.review.v1.size-limit" in of_service("frontend", ["size-limit"]).publish
    assert not [one for one in of_service("profile-picker").publish if "size-limit" in one]


def test_a_name_that_cant_be_a_stage_in_a_configuration_gets_no_login(tmp_path: Path) -> None:
    for name in ("", "  ", "my.stage", "*"):
        with pytest.raises(CommandError, match="not the name of a stage"):
            logins.write(tmp_path, [], [name], kubernetes=False)
        ran = CliRunner().invoke(app, ["nats", "permissions", "--stage", name])
        assert isinstance(ran.exception, CommandError)
    assert list(tmp_path.iterdir()) == []


def test_where_nothing_can_be_written_or_read_is_said(tmp_path: Path) -> None:
    (file := tmp_path / "file").write_text("")
    with pytest.raises(CommandError, match=r"file/credentials: not a directory\."):
        logins.write(file, [], [], kubernetes=False)
    (tmp_path / "logins/credentials/frontend.env").mkdir(parents=True)
    with pytest.raises(CommandError, match=r"frontend\.env: is a directory\."):
        logins.write(tmp_path / "logins", [], [], kubernetes=False)


def test_a_file_of_permissions_that_is_not_there_is_said(tmp_path: Path) -> None:
    ran = CliRunner().invoke(app, ["nats", "permissions", "--check", str(tmp_path / "nofile")])
    assert isinstance(ran.exception, CommandError)
    assert "nofile can't be read: No such file" in ran.exception.problem
