"""The errors that new users meet say what was wrong and what would be right."""

import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import httpx
import pytest
import pytest_asyncio
import yaml
from pydantic import JsonValue

from pointsman_testing import eventually
from pointsman_testing.answered import answered
from pointsman_testing.stack import Stack, StackFactory

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(240)]

MODEL: Final = "llama-3.1-8b"
DEAD: Final = "http://127.0.0.1:1"
"""A URL where no engine is."""
ENGINES: Final[JsonValue] = {"models": [MODEL, "sql-lora"], "loras": ["sql-lora"]}
STATIC: Final[JsonValue] = {"models": ["static-model"], "discovery": "static", "engines": [{"url": DEAD}]}
BASE: Final = {"pools": {"p": {"models": ["m"]}}}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def known(stacks: StackFactory) -> AsyncIterator[Stack]:
    """A stack with one request in its ledger, one stored key, `ci-build`, and a static pool without an engine."""
    changes: dict[str, JsonValue] = {"pools": {"llama-8b": ENGINES, "static": STATIC}}
    async with stacks.start(stored=True, replicas={"recorder": 1}, changes=changes) as stack:
        code, output = await stack.command("keys", "create", "--tenant", "acme", "--name", "ci-build")
        assert code == 0, output
        body = {"model": MODEL, "messages": [{"role": "user", "content": "x"}], "max_tokens": 1}
        async with httpx.AsyncClient(base_url=stack.door, timeout=60) as http:

            async def asked() -> tuple[int]:
                return ((await http.post("/v1/chat/completions", json=body)).status_code,)

            assert await answered(asked) == (200,)

        async def summed() -> bool:
            return MODEL in (await stack.command("usage"))[1]

        await eventually(summed)
        yield stack


@pytest.mark.parametrize(
    ("arguments", "wrong", "right"),
    [
        (
            ["doctor"],
            "pool static: no worker serves (127.0.0.1:1 has never answered: connection refused)",
            "is each running at its URL, and is its `engine` and `health` right?",
        ),
        (["config", "rollback", "abc"], "'abc' isn't the number of a revision", "`pointsman config history` lists"),
        (
            ["config", "rollback", "99"],
            "revision 99 isn't stored; stored revisions: 1",
            "`pointsman config history` shows",
        ),
        (["up", "--replicas", "schedulr=2"], "unknown service 'schedulr'", "did you mean 'scheduler'? known: batch"),
        (["up", "--replicas", "scheduler=0"], "must be 1 or more", "Write e.g. --replicas scheduler=2"),
        (["simulate", "--workload", "chatt"], "unknown workload 'chatt'", "did you mean 'chat'? known: adapters"),
        (
            ["simulate", "--workload", "chat", "--policy", "rond-robin"],
            "unknown policy 'rond-robin'",
            "did you mean 'round-robin'? known: dynamo",
        ),
        (["usage", "--model", "llama-3.1"], "the ledger has no request of this model", f"did you mean '{MODEL}'?"),
        (["usage", "--by", "tennant"], "unknown column 'tennant'", "did you mean 'tenant'? known: day"),
        (["keys", "show", "ci-bild"], "no stored key is called 'ci-bild'", "did you mean 'ci-build'?"),
        (["keys", "revoke", "ci-bild"], "no stored key is called 'ci-bild'", "did you mean 'ci-build'?"),
        (
            ["up", "--engine", DEAD, "--port", "0", "--nats-port", "0"],
            f"{DEAD} can't be asked for its models: connection refused",
            "Start an engine there, or give the base URL of a running one",
        ),
    ],
    ids=" ".join,
)
async def test_a_command_says_what_was_wrong_and_what_would_be_right(
    known: Stack, arguments: list[str], wrong: str, right: str
) -> None:
    async def told() -> bool:
        code, output = await known.command(*arguments)
        assert code != 0
        assert wrong in output
        assert right in output
        return True

    # Commands that ask running processes hear those that answer in time.
    await eventually(told)


async def test_a_port_in_use_is_named_with_the_option_that_changes_it(known: Stack) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, output = await known.command("up", "--port", str(port), "--nats-port", "0")
    assert code == 1
    assert f"port {port}, at which the gateway should listen, is in use by another process" in output
    assert "Choose another with --port, or a free one with --port 0" in output


async def test_a_missing_configuration_is_named_with_the_likely_file(known: Stack, tmp_path: Path) -> None:
    (tmp_path / "pointsman.yaml").write_text(yaml.safe_dump(BASE), encoding="utf-8")
    for arguments in (["up", "--config"], ["config", "check"]):
        code, output = await known.command(*arguments, str(tmp_path / "pointsmann.yaml"))
        assert code == 1
        assert "pointsmann.yaml can't be read: No such file or directory" in output
        assert f"In {tmp_path}, did you mean 'pointsman.yaml'?" in output


@pytest.mark.parametrize(
    ("changes", "wrong", "right"),
    [
        (
            {"profile-picker": {"use": "rules", "rules": [{"when": 'model = "a"', "profile": "standard"}]}},
            "profile-picker.rules.0.when: rule 1 ('model = \"a\"'): column 7: Syntax error",
            "write == to compare",
        ),
        (
            {"profile-picker": {"use": "rulez"}},
            "unknown profile picker type 'rulez'",
            "did you mean 'rules'? known: attribute",
        ),
        (
            {"preprocessing": [{"use": "request-limit", "per": ["tennant"], "rate": "50/s"}]},
            "preprocessing.0.per.0: request processor 'request-limit' (request-limit): per.0: unknown scope 'tennant'",
            "did you mean 'tenant'? known: header:<name>, model, plan, subject, tenant",
        ),
        (
            {"preprocessing": [{"use": "budget", "per": ["usr"], "amount": "50/month"}]},
            "unknown scope of a budget 'usr'",
            "known: key, model, plan, subject, tenant",
        ),
        (
            {"scheduling": {"default": {"scorers": ["quue"]}}},
            "unknown scorer type 'quue'",
            "did you mean 'queue'? known: active-requests",
        ),
        (
            {"providers": {"g": {"kind": "gemini"}}},
            "providers.g.kind: 'gemini' has an OpenAI-compatible API",
            "write `kind: openai` and `base_url: https://generativelanguage.googleapis.com/v1beta/openai`",
        ),
        (
            {"providers": {"g": {"kind": "opnai"}}},
            "unknown kind of provider 'opnai'",
            "did you mean 'openai'? known: anthropic",
        ),
        ({"models": {"m": {"pool": "q"}}}, "models.m.pool: unknown pool 'q'", "known: p"),
    ],
)
async def test_a_configuration_is_refused_with_the_key_and_the_right_form(
    known: Stack, tmp_path: Path, changes: dict[str, object], wrong: str, right: str
) -> None:
    file = tmp_path / "pointsman.yaml"
    file.write_text(yaml.safe_dump({**BASE, **changes}, sort_keys=False, width=200), encoding="utf-8")
    code, output = await known.command("config", "check", str(file))
    assert code == 1
    assert wrong in output
    assert right in output


@pytest.mark.parametrize(
    ("path", "content_type", "body", "status", "wrong", "right"),
    [
        (
            "/v1/chat/completions", "text/plain", "{}", 415,
            "The request's Content-Type is text/plain;", "send application/json.",
        ),
        ("/v1/chat/completions", "pm-secret", "{}", 415, "is not a media type;", "send application/json."),
        (
            "/v1/audio/transcriptions", "application/json", "{}", 415,
            "The request's Content-Type is application/json;", "send multipart/form-data.",
        ),
        ("/v1/messages/count_token", "application/json", "{}", 404, "Unknown path.", "mean /v1/messages/count_tokens"),
        (
            "/v1/completions", "application/json", '{"model": "llama", "prompt": "x"}', 404,
            "The model 'llama' does not exist.", "Known models:",
        ),
    ],
)  # fmt: skip
async def test_a_request_is_refused_with_words_for_both(
    known: Stack, path: str, content_type: str, body: str, status: int, wrong: str, right: str
) -> None:
    async with httpx.AsyncClient(base_url=known.door, timeout=60) as http:

        async def asked() -> tuple[int, httpx.Response]:
            found = await http.post(path, content=body, headers={"content-type": content_type})
            return found.status_code, found

        told, answer = await answered(asked)
    assert told == status
    message = answer.json()["error"]["message"]
    assert wrong in message
    assert right in message
    assert "secret" not in message
