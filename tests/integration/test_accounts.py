"""Logins that may do what their service needs and nothing else, on a real server with TLS as deploy/nats has it."""

import asyncio
import io
import re
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Final

import aiohttp
import pytest
import pytest_asyncio
from nats.js.errors import Error as JetStreamError
from pydantic import JsonValue, SecretStr
from rich.console import Console

from pointsman_cli import bus
from pointsman_cli.config.config_commands import history
from pointsman_cli.doctor.doctor import doctor
from pointsman_cli.explain.explain import explain
from pointsman_cli.keys import api_keys, logins, stored_keys
from pointsman_cli.keys.accounts import LOGINS
from pointsman_cli.keys.permissions import AgentIdentity, producer_user
from pointsman_cli.words import CommandError
from pointsman_contracts.api_key import ApiKey
from pointsman_contracts.catalogue import MESSAGES
from pointsman_contracts.journey import Journey, PreprocessRequest
from pointsman_contracts.message import Message
from pointsman_contracts.parties import AGENT, BUNDLE, NEXT, PARTIES, SHARED_LOGINS
from pointsman_contracts.presence import ServicePresence
from pointsman_contracts.response_stage import ResponseReview
from pointsman_contracts.services import STAGES
from pointsman_contracts.subjects import REST, direct_subject, inbox, stage_subject, subject
from pointsman_contracts.work import WORK_RESULTS_STREAM, WORK_STREAM, WorkItem, WorkResult
from pointsman_runtime.bus.connection import Connection
from pointsman_runtime.configuring.settings import ServiceSettings
from pointsman_testing import Processes, eventually
from pointsman_testing.answered import answered
from pointsman_testing.nats_server import LocalNatsServer
from pointsman_testing.stack import POOL, Stack, StackFactory

pytestmark = [
    pytest.mark.requirement("BUS-3"),
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(300),
]

ROOT = Path(__file__).resolve().parents[2]
CERTIFICATES = ROOT / "services/epp-adapter/tests/certificates"
AGENTS = [AgentIdentity(POOL, "engine-1"), AgentIdentity(POOL, "engine-2")]
STAGE = "size-limit"
QUEUE = "nightly"
EVERYTHING: Final[dict[str, JsonValue]] = {
    "preprocessing": [{"use": "request-limit", "per": ["model"], "rate": "1000/s"}],
    "guards": {"default": {}},
    "caches": {"default": {}},
    "profiles": {
        name: {
            "request": [*first, "guard", "semantic-cache", "scheduler"],
            "response": ["guard", "semantic-cache"],
        }
        for name, first in (("standard", []), ("priority", []), ("auto", ["model-selector/cheap"]))
    },
}
"""Every stage on the way of every request, and limits that the preprocessors keep together."""
_REFUSED = re.compile(r"Permissions Violation for (?:Publish|Subscription) to \"([^\"]+)\"")


class Accounts:
    """A server with logins, and the credentials of each."""

    def __init__(self, folder: Path) -> None:
        logins.write(folder, AGENTS, [STAGE], [QUEUE], kubernetes=False)
        self.folder = folder
        # The server of these tests writes a file of its own elsewhere, so what includes would bring stands in it.
        text = _with_own_places((ROOT / "deploy/nats/server.conf").read_text(), folder)
        for name in ("users.conf", "permissions.conf"):
            text = text.replace(f'include "{name}"', (folder / name).read_text())
        self.server = LocalNatsServer(text)

    def environment(self, user: str) -> Mapping[str, str]:
        """The settings with which a process logs in as this user."""
        text = (self.folder / "credentials" / f"{user.replace('/', '.')}.env").read_text()
        return {
            **dict(line.split("=", 1) for line in text.splitlines()),
            "POINTSMAN_NATS_URL": self.server.url.replace("nats://", "tls://"),
            "POINTSMAN_NATS_TLS_CA": str(CERTIFICATES / "first.crt"),
        }

    def settings(self, user: str) -> ServiceSettings:
        """The same, as a service reads them."""
        told = self.environment(user)
        return ServiceSettings(
            nats_url=told["POINTSMAN_NATS_URL"],
            nats_user=told["POINTSMAN_NATS_USER"],
            nats_password=SecretStr(told["POINTSMAN_NATS_PASSWORD"]),
            nats_tls_ca=Path(told["POINTSMAN_NATS_TLS_CA"]),
        )

    @asynccontextmanager
    async def connected(self, user: str) -> AsyncGenerator["Login"]:
        """A connection with the login of this user."""
        settings = self.settings(user)
        link = Connection(settings.nats_servers, name=user, login=settings.nats_login, tls=settings.nats_tls())
        login = Login(link)
        link.open()
        await eventually(lambda: link.connected)
        try:
            yield login
        finally:
            await link.close()


class Login:
    """A connection that remembers what it was refused and what it heard."""

    def __init__(self, link: Connection) -> None:
        self.link = link
        self.replies: list[str] = []
        self._refused: set[str] = set()
        link.on_refused = self._note

    def hear(self, topic: str) -> None:
        """Note the reply subject of every message."""
        self.link.subscribe(topic, lambda _subject, reply, _headers, _payload: self.replies.append(reply))

    async def refused_publishing(self, subjects: Iterable[str]) -> set[str]:
        """Those of the subjects that the server doesn't let it publish to."""
        self._refused.clear()
        for one in subjects:
            self.link.publish(one, b"")
        await self.link.flush()
        return set(self._refused)

    async def refused_subscribing(self, subjects: Iterable[str]) -> set[str]:
        """Those that it can't hear."""
        self._refused.clear()
        for one in subjects:
            self.link.unsubscribe(self.link.subscribe(one, _ignore))
        await self.link.flush()
        return set(self._refused)

    def _note(self, words: str) -> None:
        found = _REFUSED.search(words)
        assert found is not None, words
        self._refused.add(found[1])


def _ignore(subject: str, reply: str, headers: bytes, payload: bytes) -> None:
    del subject, reply, headers, payload


@pytest.fixture(scope="module")
def accounts(tmp_path_factory: pytest.TempPathFactory) -> Accounts:
    return Accounts(tmp_path_factory.mktemp("accounts"))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(stacks: StackFactory, accounts: Accounts) -> AsyncIterator[Stack]:
    """Every service on that server, each with its own login; the operator has applied the configuration."""
    replicas = {"preprocessor": 2, "guard": 1, "semantic-cache": 1, "recorder": 1}
    async with stacks.start(
        stored=True, engines=1, replicas=replicas, changes=EVERYTHING, nats=accounts.server, logins=accounts.environment
    ) as started:
        yield started


async def test_a_request_makes_its_whole_journey_without_a_refused_permission(
    stack: Stack, accounts: Accounts, module_processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = {**stack.env, **accounts.environment("epp-adapter"), "POINTSMAN_PORT": "0"}
    adapter = module_processes.start("pointsman-epp-adapter", env=environment)
    # A scheduler that joins asks the other one for what it knows.
    stack.services["scheduler"].append(second := stack.start("scheduler"))
    await asyncio.gather(adapter.wait_ready(), second.wait_ready(timeout=60))
    await _served(stack, "auto", stream=True)
    request_id = await _served(stack, "sql-lora", stream=False)
    await _look_as_the_operator(accounts, monkeypatch, request_id)
    assert [line for line in accounts.server.log_path.read_text().splitlines() if "Violation" in line] == []
    processes = [*stack.all_services(), adapter]
    assert [process.command for process in processes if "subject_refused" in process.log_text()] == []


async def _served(stack: Stack, model: str, *, stream: bool) -> str:
    """Have a request served; returns its id."""
    body: dict[str, JsonValue] = {
        "model": model, "stream": stream, "messages": [{"role": "user", "content": "Which track?"}],
    }  # fmt: skip
    async with aiohttp.ClientSession() as http:

        async def asked() -> tuple[int, str, str]:
            async with http.post(f"{stack.door}/v1/chat/completions", json=body) as answer:
                return answer.status, await answer.text(), answer.headers["x-request-id"]

        status, text, request_id = await answered(asked)
    assert status == 200, text
    return request_id


async def _look_as_the_operator(accounts: Accounts, monkeypatch: pytest.MonkeyPatch, request_id: str) -> None:
    """Doctor, history, explain and keys, in this process because starting the command costs more."""
    for name, value in accounts.environment("operator").items():
        monkeypatch.setenv(name, value)

    async def healthy() -> bool:
        """As the doctor finds once it has heard everybody."""
        console = Console(file=io.StringIO(), width=200)
        well = await doctor(None, console)
        assert isinstance(console.file, io.StringIO)
        assert "permitted" not in console.file.getvalue()
        assert well, console.file.getvalue()
        return True

    await eventually(healthy)
    console = Console(file=io.StringIO(), width=200)
    await history(None, console)
    await explain(None, request_id, timedelta(minutes=5), console, as_json=False)
    _, digest, _ = api_keys.made(record := ApiKey(id="somebody", tenant="books"))
    async with stored_keys.opened(None) as keys:
        await keys.store_key(digest, record)
        assert await keys.revoke_keys(record.id) == 1


@pytest.mark.parametrize("user", [*LOGINS, AGENTS[0].user])
async def test_a_login_may_speak_and_hear_as_its_service_and_not_otherwise(
    stack: Stack, accounts: Accounts, user: str
) -> None:
    parties = (*SHARED_LOGINS, AGENT) if user == BUNDLE else (AGENT if user == AGENTS[0].user else user,)
    said: dict[str, bool] = {}
    heard: dict[str, bool] = {}
    for message in MESSAGES:
        senders, readers = PARTIES[message.address.type_id]
        for party in parties:
            # A presence names its service, which alone may publish it.
            own = {party} if message is ServicePresence else set(parties)
            for one in _samples(message, party):
                said[one] = said.get(one, False) or not own.isdisjoint(senders)
                heard[one] = not set(parties).isdisjoint(readers)
    for stage in STAGES:
        for one in _stage_samples(stage):
            said[one] = any(stage in NEXT.get(party, ()) for party in parties) or (
                stage == "preprocessor"
                and not set(parties).isdisjoint(PARTIES[PreprocessRequest.address.type_id].senders)
            )
            heard[one] = stage in parties
    async with accounts.connected(user) as login:
        assert await login.refused_publishing(said) == {one for one, allowed in said.items() if not allowed}
        assert await login.refused_subscribing(heard) == {one for one, allowed in heard.items() if not allowed}


def _samples(message: type[Message], party: str) -> list[str]:
    """Subjects of a message, as this party would use them if it may at all."""
    address = message.address
    if message in (PreprocessRequest, Journey) or address.route == ("inbox",) or address.bucket:
        return []
    if message is ResponseReview:
        return [subject(message, party)] if party in PARTIES[address.type_id].readers else [subject(message, "guard")]
    own = {"service": party if message is ServicePresence else "x", "pool": POOL, "worker": "engine-1"}
    return [subject(message, *(own.get(name, "x") for name in address.route))]


def _stage_samples(stage: str) -> list[str]:
    route = tuple("some-pool" for _ in STAGES[stage].route)
    return [stage_subject(stage, *route), direct_subject(stage, "some-instance", *route)]


@pytest.mark.parametrize("user", [*LOGINS, AGENTS[0].user, STAGE])
async def test_no_login_hears_others_inboxes_or_everything(stack: Stack, accounts: Accounts, user: str) -> None:
    others = {f"{inbox(other)}.>" for other in (*LOGINS, STAGE, *(agent.user for agent in AGENTS)) if other != user}
    too_much = {*others, ">", "pm.>", "pm.rpc.>", "_INBOX.>", "$JS.>", "$SYS.>", "$KV.>"}
    async with accounts.connected(user) as login:
        assert await login.refused_subscribing(too_much) == too_much
        assert await login.refused_subscribing([f"{inbox(user)}.x.y"]) == set()


async def test_an_agent_cannot_speak_for_another_worker(stack: Stack, accounts: Accounts) -> None:
    mine, other = AGENTS
    topics = [f"pm.sig.worker.{what}.v1" for what in ("load", "kv")]
    own = [*(f"{topic}.{mine.pool}.{mine.worker}" for topic in topics), f"$KV.pm-workers.{mine.pool}.{mine.worker}"]
    foreign = {
        *(
            f"{topic}.{pool}.{worker}"
            for topic in topics
            for pool, worker in ((POOL, other.worker), ("p", mine.worker))
        ),
        f"$KV.pm-workers.{POOL}.{other.worker}",
        f"{inbox('scheduler')}.some-scheduler.1",
    }
    async with accounts.connected(mine.user) as login:
        assert await login.refused_publishing([*own, *foreign]) == foreign
        question = f"pm.ctl.worker.kv-query.v1.{POOL}"
        assert await login.refused_subscribing([f"{question}.{mine.worker}", f"{question}.{other.worker}"]) == {
            f"{question}.{other.worker}"
        }


async def test_a_producer_publishes_to_its_queue_and_reads_the_results_of_it_alone(
    stack: Stack, accounts: Accounts
) -> None:
    del stack
    user = producer_user(QUEUE)
    create = f"$JS.API.CONSUMER.CREATE.{WORK_RESULTS_STREAM}.{user}"
    own = {subject(WorkItem, QUEUE), f"{create}.{subject(WorkResult, QUEUE, REST)}"}
    foreign = {
        subject(WorkItem, "other"),
        subject(WorkResult, QUEUE, "-", "forged"),
        create,
        f"{create}.{subject(WorkResult, 'other', REST)}",
        f"$JS.API.CONSUMER.CREATE.{WORK_RESULTS_STREAM}.other.{subject(WorkResult, QUEUE, REST)}",
        f"$JS.API.CONSUMER.DURABLE.CREATE.{WORK_RESULTS_STREAM}.{user}",
        f"$JS.API.STREAM.MSG.GET.{WORK_RESULTS_STREAM}",
        f"$JS.API.CONSUMER.CREATE.{WORK_STREAM}.{user}",
    }
    async with accounts.connected(user) as login:
        assert await login.refused_publishing([*own, *foreign]) == foreign
        results = subject(WorkResult, QUEUE, REST)
        assert await login.refused_subscribing([results, f"{inbox(user)}.x"]) == {results}


async def test_an_agent_and_a_foreign_stage_answer_their_caller_and_only_once(stack: Stack, accounts: Accounts) -> None:
    for user, asker, topic in (
        (AGENTS[0].user, "scheduler", f"pm.ctl.worker.kv-query.v1.{POOL}.engine-1"),
        (STAGE, "profile-picker", stage_subject(STAGE)),
    ):
        async with accounts.connected(user) as login, accounts.connected(asker) as client:
            login.hear(topic)
            await login.link.flush()
            reply_to = f"{inbox(asker)}.asker.1"
            client.link.publish(topic, b"{}", reply=reply_to)
            await eventually(lambda heard=login.replies: heard)
            assert login.replies == [reply_to]
            assert await login.refused_publishing([reply_to]) == set()
            assert await login.refused_publishing([reply_to]) == {reply_to}


async def test_only_the_operator_changes_the_configuration_and_no_login_deletes_what_is_stored(
    stack: Stack, accounts: Accounts
) -> None:
    stored = ("PM_EVENTS", "KV_pm-config", "KV_pm-workers")
    destroying = {
        f"$JS.API.STREAM.{what}.{name}" for what in ("DELETE", "PURGE", "UPDATE", "MSG.DELETE") for name in stored
    }
    for user in (*LOGINS, AGENTS[0].user, STAGE):
        async with accounts.connected(user) as login:
            wanted = {*destroying, *(() if user == "operator" else ("$KV.pm-config.config",))}
            assert await login.refused_publishing(wanted) == wanted
    # It leaves events for the auditor.
    await _served(stack, "sql-lora", stream=False)
    async with bus.connected(accounts.settings("auditor")) as client:
        js = client.jetstream(timeout=30.0)  # pyright: ignore[reportUnknownMemberType] - untyped in nats-py
        subscription = await js.pull_subscribe("pm.evt.>", durable="auditor", stream="PM_EVENTS")
        [event] = await subscription.fetch(1, timeout=30.0)
        await event.ack_sync()
        with pytest.raises((JetStreamError, TimeoutError)):
            await client.jetstream(timeout=1.0).key_value("pm-config")  # pyright: ignore[reportUnknownMemberType] - as above
    async with accounts.connected("auditor") as login:
        others = {f"$JS.API.CONSUMER.{what}.PM_EVENTS.recorder" for what in ("DELETE", "MSG.NEXT", "DURABLE.CREATE")}
        others.add("$JS.ACK.PM_EVENTS.recorder.1.1.1.1.0")
        assert await login.refused_publishing(others) == others


async def test_no_client_gets_in_without_a_login_or_with_a_wrong_one(stack: Stack, accounts: Accounts) -> None:
    right = accounts.settings("frontend")
    for wrong in ({"nats_user": None, "nats_password": None}, {"nats_password": SecretStr("wrong")}):
        with pytest.raises(CommandError, match="refuses this login"):
            async with bus.connected(right.model_copy(update=wrong)):
                raise AssertionError("it got in")


async def test_the_server_takes_the_files_as_they_are_written(tmp_path: Path) -> None:
    logins.write(tmp_path, [*AGENTS, AgentIdentity("a pool", 'a "worker"')], [STAGE], kubernetes=True)
    (tmp_path / "server.conf").write_text(_with_own_places((ROOT / "deploy/nats/server.conf").read_text(), tmp_path))
    server = str(Path(sys.executable).with_name("nats-server"))
    check = await asyncio.create_subprocess_exec(
        server, "-t", "--config", str(tmp_path / "server.conf"), stderr=asyncio.subprocess.PIPE
    )
    _, words = await check.communicate()
    assert check.returncode == 0, words


def _with_own_places(text: str, folder: Path) -> str:
    for shipped, own in (
        ("/data", str(folder / "data")),
        ("/etc/nats/tls/tls.crt", str(CERTIFICATES / "first.crt")),
        ("/etc/nats/tls/tls.key", str(CERTIFICATES / "first.key")),
        ("8222", "127.0.0.1:-1"),
    ):
        assert shipped in text
        text = text.replace(shipped, f'"{own}"' if shipped.startswith("/") else own)
    return text
