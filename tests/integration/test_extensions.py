"""Extensions by others: a plugin in a distribution of its own, and a stage that knows nothing but NATS and JSON."""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
from jsonschema import Draft202012Validator
from nats.aio.client import Client
from nats.aio.msg import Msg

from pointsman_contracts.response import RequestAnswered, RequestRejected, ResponseCompleted
from pointsman_contracts.scheduling import RequestScheduled
from pointsman_contracts.subjects import ANY
from pointsman_testing import Processes, eventually
from pointsman_testing.answered import answered
from pointsman_testing.observer import observing
from pointsman_testing.processes import ServiceProcess
from pointsman_testing.stack import Stack, StackFactory

ROOT = Path(__file__).resolve().parents[2]
STAGE = ROOT / "examples" / "stage_nats.py"
ANSWERING_STAGE = ROOT / "examples" / "answering_stage_nats.py"
RESPONSE_STAGE = ROOT / "examples" / "response_stage_nats.py"
OTHER_STAGES = Path(__file__).parent / "stages"
PLUGIN = ROOT / "examples" / "plugin"
MODEL = "llama-3.1-8b"
DENY, ALLOW = {"x-gate": "deny"}, {"x-gate": "allow"}
GATES = ("deny", "deny-soon", "allow", "both", "notice", "redact", "redact-soon", "redact-if-there")
SOON = {"timeout": "500ms"}
"""For a stage that never answers; any other may be kept waiting by the machine."""

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(240)]


def install(distribution: Path, target: Path) -> None:
    """The files that `pip install --target` leaves of a distribution of pure Python, without a build backend."""
    project: dict[str, Any] = tomllib.loads((distribution / "pyproject.toml").read_text())["project"]
    for package in distribution.glob("*/__init__.py"):
        shutil.copytree(package.parent, target / package.parent.name)
    info = target / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    lines: list[str] = []
    for group, offered in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {value}" for name, value in offered.items())]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(stacks: StackFactory, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    """A stack in whose environment the plugin is installed, with two profiles through the stage."""
    site = tmp_path_factory.mktemp("site")
    install(PLUGIN, site)
    changes: dict[str, Any] = {
        "preprocessing": [{"use": "tool-count", "most": 4}, {"use": "stream-usage"}],
        "stages": {
            "size-limit": {"timeout": "20s"},
            "notice": {"timeout": "20s"},
            "redact": {"timeout": "20s", "mode": "window", "content": "text", "window": 60, "overlap": 20},
            "audit": {"content": "text", "timeout": "30s"},
        },
        "postprocessing": ["audit"],
        "profiles": {
            "standard": {"request": ["scheduler"], "static": "deny"},
            "tools": {"request": ["scheduler"], "static": "deny"},
            "deny": {"request": ["size-limit", "scheduler"], "static": "deny"},
            "deny-soon": {"request": [{"stage": "size-limit", **SOON}, "scheduler"], "static": "deny"},
            "allow": {"request": [{"stage": "size-limit", "on_error": "allow", **SOON}, "scheduler"], "static": "deny"},
            "both": {"request": ["size-limit", "scheduler"], "response": ["redact"], "static": "deny"},
            "redact": {"response": ["redact"], "static": "deny"},
            "redact-soon": {"response": [{"stage": "redact", **SOON}], "static": "deny"},
            "notice": {"request": ["notice", "scheduler"], "response": ["redact"], "static": "deny"},
            "redact-if-there": {"response": [{"stage": "redact", "on_error": "allow", **SOON}], "static": "deny"},
        },
        "profile-picker": {
            "use": "rules",
            "rules": [
                {"when": 'attributes["tool_count"] > 2', "profile": "tools"},
                *({"when": f'headers["x-gate"] == "{name}"', "profile": name} for name in GATES),
            ],
            "default": "standard",
        },
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(site))
        async with stacks.start(engines=1, changes=changes) as started:
            yield started


@pytest_asyncio.fixture(loop_scope="module")
async def stage(stack: Stack, processes: Processes) -> ServiceProcess:
    """The example stage, once it listens."""
    process = processes.start_command([sys.executable, str(STAGE)], env={"POINTSMAN_NATS_URL": stack.nats.url})

    async def serves() -> bool:
        status, _ = await ask(stack, DENY)
        return status == 200

    await eventually(serves)
    return process


async def ask(stack: Stack, headers: dict[str, str], **changes: Any) -> tuple[int, Any]:
    body = {"model": MODEL, "messages": [{"role": "user", "content": "x"}], "max_tokens": 30, "ignore_eos": True}
    async with (
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as http,
        http.post(f"{stack.door}/v1/chat/completions", json=body | changes, headers=headers) as answer,
    ):
        return answer.status, await answer.json()


def tools(count: int) -> list[dict[str, Any]]:
    return [{"type": "function", "function": {"name": f"tool_{number}", "parameters": {}}} for number in range(count)]


async def test_a_plugin_of_another_distribution_decides_with_the_rules_that_read_it(stack: Stack) -> None:
    async with observing(stack.nats.url) as seen:
        decisions = seen.listen(RequestScheduled, ANY)
        for count, profile in ((1, "standard"), (3, "tools")):
            status, _ = await answered(lambda count=count: ask(stack, {}, tools=tools(count)))
            assert status == 200
            await eventually(lambda profile=profile: decisions and decisions[-1].profile == profile)


async def test_it_refuses_with_its_own_words(stack: Stack) -> None:
    status, answer = await answered(lambda: ask(stack, {}, tools=tools(5)))
    assert (status, answer["error"]["message"], answer["error"]["param"]) == (
        400, "5 tools are too many; offer 4 at most.", "tools",
    )  # fmt: skip


async def test_its_parameters_are_checked_when_a_configuration_is_applied(stack: Stack, tmp_path: Path) -> None:
    file = tmp_path / "wrong.yaml"
    file.write_text("preprocessing:\n  - {use: tool-count, moste: 4}\n")
    code, output = await stack.command("config", "check", str(file))
    assert code == 1
    assert "unknown parameter 'moste'; did you mean 'most'?" in output
    assert "(line 2)" in output


@pytest.mark.requirement("S3-4")
async def test_a_stage_of_forty_lines_changes_requests_and_is_seen_in_decisions(
    stack: Stack, stage: ServiceProcess
) -> None:
    assert len(STAGE.read_text().splitlines()) <= 40
    async with observing(stack.nats.url) as seen:
        decisions = seen.listen(RequestScheduled, ANY)
        status, answer = await answered(lambda: ask(stack, DENY))
        assert (status, answer["usage"]["completion_tokens"]) == (200, 8)
        await eventually(lambda: decisions)
        [report] = [report for report in decisions[-1].trail if report.stage == "size-limit"]
        assert (report.outcome, report.note) == ("passed", "at most 8 tokens")
        assert not [reason for reason in decisions[-1].reasons if "size-limit" in reason]


async def test_it_refuses_in_its_own_words_and_the_event_names_it(stack: Stack, stage: ServiceProcess) -> None:
    async with observing(stack.nats.url) as seen:
        rejections = seen.listen(RequestRejected, ANY)
        words = [{"role": "user", "content": "words " * 2000}]
        status, answer = await answered(lambda: ask(stack, DENY, messages=words))
        assert (status, answer["error"]["code"]) == (400, "prompt_too_long")
        await eventually(lambda: rejections)
        assert rejections[0].stage == "size-limit"


@pytest.fixture(params=["node", "go"])
def command(request: pytest.FixtureRequest, tmp_path: Path) -> list[str]:
    """Starts the example stage as it is written in another language."""
    language = str(request.param)
    if language == "node":
        return [shutil.which("node") or pytest.skip("needs Node.js"), str(OTHER_STAGES / "stage.mjs")]
    # The first compilation takes 15 seconds, of Go's own library.
    compiler = os.environ.get("POINTSMAN_GO") or pytest.skip("needs the compiler that POINTSMAN_GO names")
    built = tmp_path / "stage"
    subprocess.run([compiler, "build", "-o", built, OTHER_STAGES / "stage.go"], check=True)
    return [str(built)]


@pytest.mark.requirement("S3-4")
async def test_a_stage_in_another_language_changes_requests_and_refuses_them(
    stack: Stack, processes: Processes, command: list[str]
) -> None:
    processes.start_command(command, env={"POINTSMAN_NATS_URL": stack.nats.url})
    async with observing(stack.nats.url) as seen:
        decisions = seen.listen(RequestScheduled, ANY)

        async def answer_tokens() -> int:
            status, answer = await ask(stack, DENY)
            return answer["usage"]["completion_tokens"] if status == 200 else 0

        assert await eventually(answer_tokens) == 8
        await eventually(lambda: decisions)
        notes = [report.note for report in decisions[-1].trail if report.stage == "size-limit"]
        assert notes == ["at most 8 tokens"]
    words = [{"role": "user", "content": "words " * 2000}]
    status, answer = await answered(lambda: ask(stack, DENY, messages=words))
    assert (status, answer["error"]["code"]) == (400, "prompt_too_long")


@pytest.mark.parametrize(("how", "status"), [("pause", 504), ("kill", 503)])
async def test_a_stage_that_hangs_or_dies_follows_its_on_error(
    stack: Stack, stage: ServiceProcess, how: str, status: int
) -> None:
    getattr(stage, how)()
    async with observing(stack.nats.url) as seen:
        decisions = seen.listen(RequestScheduled, ANY)
        gate = "deny-soon" if how == "pause" else "deny"
        denied, answer = await ask(stack, {"x-gate": gate, "x-request-id": f"denied-{how}"})
        assert denied == status
        assert "size-limit" in answer["error"]["message"]
        allowed, _ = await answered(lambda: ask(stack, ALLOW))
        assert allowed == 200
        decision = await eventually(lambda: next((each for each in decisions if each.profile == "allow"), None))
        assert decision.level == "degraded"
        assert "size-limit" in decision.reasons[0]
        assert [report.outcome for report in decision.trail if report.stage == "size-limit"] == ["skipped"]
        assert f"denied-{how}" not in [each.request_id for each in decisions]


async def test_the_messages_to_and_from_a_stage_match_the_schemas(stack: Stack, stage: ServiceProcess) -> None:
    def fits(document: bytes, name: str) -> bool:
        schema = Draft202012Validator(json.loads((ROOT / "contracts" / "schemas" / f"{name}.json").read_text()))
        return schema.is_valid(json.loads(document))  # pyright: ignore[reportUnknownMemberType] - jsonschema

    client = Client()
    await client.connect(stack.nats.url)
    heard: list[bytes] = []

    async def listen(message: Msg) -> None:
        heard.append(message.data)

    await client.subscribe("pm.rpc.request.size-limit.v1", cb=listen)  # pyright: ignore[reportUnknownMemberType] - nats-py
    try:
        await client.flush()
        await ask(stack, DENY)
        await ask(stack, DENY, messages=[{"role": "user", "content": "words " * 2000}])
        await eventually(lambda: len(heard) == 2)
        answers = [(await client.request("pm.rpc.request.size-limit.v1", document)).data for document in heard[:]]
    finally:
        await client.close()
    assert all(fits(document, "request.journey.v1") for document in heard)
    assert fits(answers[0], "request.journey.v1")
    assert fits(answers[1], "request.rejection.v1")


@pytest_asyncio.fixture(loop_scope="module")
async def response_stage(stack: Stack, processes: Processes) -> ServiceProcess:
    """The example stage on the way back, once it listens. Engines here answer with words: it removes one of them."""
    env = {
        "POINTSMAN_NATS_URL": stack.nats.url,
        "REMOVED": r"\b(the|and|for|are|but)\b",
        "WITHHELD": r"\bout (all|day)\b",
    }
    process = processes.start_command([sys.executable, str(RESPONSE_STAGE)], env=env)

    async def serves() -> bool:
        status, _ = await ask(stack, {"x-gate": "redact"}, max_tokens=1)
        return status == 200

    await eventually(serves)
    return process


async def streamed(stack: Stack, gate: str, seed: int) -> tuple[int, str, str | None]:
    """Status, text and finish reason of a streamed answer."""
    body = {"model": MODEL, "messages": [{"role": "user", "content": "x"}], "max_tokens": 300, "ignore_eos": True}
    async with (
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as http,
        http.post(
            f"{stack.door}/v1/chat/completions", json=body | {"stream": True, "seed": seed}, headers={"x-gate": gate}
        ) as answer,
    ):
        events = (await answer.text()).split("\n\n")
    documents = [json.loads(event[6:]) for event in events if event.startswith("data: {")]
    choices = [choice for document in documents for choice in document.get("choices", ())]
    text = "".join(choice["delta"].get("content") or "" for choice in choices)
    return answer.status, text, next((choice["finish_reason"] for choice in choices if choice["finish_reason"]), None)


@pytest.mark.requirement("S0-58")
async def test_a_response_stage_of_forty_lines_changes_what_the_client_gets(
    stack: Stack, response_stage: ServiceProcess
) -> None:
    assert len(RESPONSE_STAGE.read_text().splitlines()) <= 40
    plain = [await streamed(stack, "", seed) for seed in range(6)]
    redacted = [await streamed(stack, "redact", seed) for seed in range(6)]
    withheld = 0
    for (_, before, _), (status, text, reason) in zip(plain, redacted, strict=True):
        expected = re.sub(r"\b(the|and|for|are|but)\b", "[removed]", before)
        if re.search(r"\bout (all|day)\b", before):
            withheld += 1
            assert (status, reason) in ((403, None), (200, "content_filter"))
            assert expected.startswith(text)
            assert not re.search(r"\bout (all|day)\b", text)
        else:
            assert (status, text, reason) == (200, expected, "length")
    assert 0 <= withheld < 6


@pytest.mark.requirement("S0-3")
async def test_the_whole_flow_runs_there_and_back(
    stack: Stack, stage: ServiceProcess, response_stage: ServiceProcess
) -> None:
    async with observing(stack.nats.url) as seen:
        decisions, completions = seen.listen(RequestScheduled, ANY), seen.listen(ResponseCompleted, ANY)
        status, answer = await answered(lambda: ask(stack, {"x-gate": "both"}, tools=tools(1)))
        decision = await eventually(lambda: next((each for each in decisions if each.profile == "both"), None))
        completed = await eventually(lambda: next((each for each in completions if each.profile == "both"), None))
    assert (status, answer["usage"]["completion_tokens"]) == (200, 8)
    assert [report.stage for report in decision.trail][:3] == ["preprocessor", "profile-picker", "size-limit"]
    assert [report.stage for report in completed.stages] == ["redact"]
    assert completed.outcome == "ok"


@pytest.mark.requirement("CACHE-1", "S3-4")
async def test_a_stage_that_answers_by_itself_spares_the_engines_and_its_answer_passes_the_way_back(
    stack: Stack, response_stage: ServiceProcess, processes: Processes
) -> None:
    assert len(ANSWERING_STAGE.read_text().splitlines()) <= 40
    env = {"POINTSMAN_NATS_URL": stack.nats.url, "NOTICE": "Back at noon, and the trains run."}
    processes.start_command([sys.executable, str(ANSWERING_STAGE)], env=env)

    async def serves() -> bool:
        return (await ask(stack, {"x-gate": "notice"}))[0] == 200

    await eventually(serves)
    async with observing(stack.nats.url) as seen:
        told, completions = seen.listen(RequestAnswered, ANY), seen.listen(ResponseCompleted, ANY)
        status, answer = await answered(lambda: ask(stack, {"x-gate": "notice"}))
        await eventually(lambda: told and completions)
    said = "Back at noon, [removed] [removed] trains run."
    assert (status, answer["model"], answer["choices"][0]["message"]["content"]) == (200, MODEL, said)
    assert (told[0].stage, told[0].profile, completions[0].answered_by) == ("notice", "notice", "notice")
    assert (completions[0].worker, [report.outcome for report in completions[0].stages]) == (None, ["replaced"])
    assert await streamed(stack, "notice", 1) == (200, said, "stop")


@pytest.mark.parametrize(("how", "status"), [("pause", 504), ("kill", 503)])
async def test_a_response_stage_that_hangs_or_dies_follows_its_on_error(
    stack: Stack, response_stage: ServiceProcess, how: str, status: int
) -> None:
    getattr(response_stage, how)()
    denied, answer = await ask(stack, {"x-gate": "redact-soon" if how == "pause" else "redact"})
    assert denied == status
    assert "redact" in answer["error"]["message"]
    async with observing(stack.nats.url) as seen:
        completions = seen.listen(ResponseCompleted, ANY)
        allowed, _ = await answered(lambda: ask(stack, {"x-gate": "redact-if-there"}))
        profile = "redact-if-there"
        completed = await eventually(lambda: next((each for each in completions if each.profile == profile), None))
    assert (allowed, completed.level) == (200, "degraded")
    assert [report.outcome for report in completed.stages] == ["skipped"]


@pytest.mark.requirement("S0-63")
async def test_the_messages_to_stages_about_answers_and_errors_match_the_schemas(
    stack: Stack, stage: ServiceProcess, response_stage: ServiceProcess
) -> None:
    def fits(document: bytes, name: str) -> bool:
        schema = Draft202012Validator(json.loads((ROOT / "contracts" / "schemas" / f"{name}.json").read_text()))
        return schema.is_valid(json.loads(document))  # pyright: ignore[reportUnknownMemberType] - jsonschema

    client = Client()
    await client.connect(stack.nats.url)
    audits: list[bytes] = []
    reviews: list[bytes] = []

    async def audit(message: Msg) -> None:
        request_id = json.loads(message.data)["request_id"]
        if request_id.startswith(f"{client.client_id}-"):  # not of a test before this one
            audits.append(message.data)
        await message.respond(json.dumps({"request_id": request_id}).encode())

    async def listen(message: Msg) -> None:
        reviews.append(message.data)

    await client.subscribe("pm.rpc.response.review.v1.audit", queue="audit", cb=audit)  # pyright: ignore[reportUnknownMemberType] - nats-py
    await client.subscribe("pm.rpc.response.review.v1.redact", cb=listen)  # pyright: ignore[reportUnknownMemberType] - nats-py
    try:
        await client.flush()
        await ask(stack, {"x-request-id": f"{client.client_id}-1", "x-gate": "both"})
        words = [{"role": "user", "content": "words " * 2000}]
        await ask(stack, {"x-request-id": f"{client.client_id}-2", **DENY}, messages=words)
        await ask(stack, {"x-request-id": f"{client.client_id}-3"}, model="nobody-knows")
        await eventually(lambda: len(audits) == 3 and reviews)
        verdict = (await client.request("pm.rpc.response.review.v1.redact", reviews[0])).data
    finally:
        await client.close()
    assert all(fits(document, "response.review.v1") for document in (*audits, *reviews))
    assert fits(verdict, "response.verdict.v1")
    told = [json.loads(document) for document in audits]
    assert sorted((each["status"], each["outcome"]) for each in told) == [
        (200, "ok"), (400, "rejected"), (404, "rejected"),
    ]  # fmt: skip
    assert all(each["texts"][0]["text"] for each in told)


@pytest.mark.requirement("S0-9")
async def test_a_change_made_in_preprocessing_reaches_the_engine_and_not_the_client(stack: Stack) -> None:
    """The engine is asked for the usage, which the client didn't want."""
    async with observing(stack.nats.url) as seen:
        completions = seen.listen(ResponseCompleted, ANY)
        body = {"model": MODEL, "prompt": "x", "max_tokens": 5, "stream": True, "ignore_eos": True}
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as http,
            http.post(f"{stack.door}/v1/completions", json=body) as answer,
        ):
            text = await answer.text()
        mine = answer.headers["x-request-id"]
        completed = await eventually(lambda: next((each for each in completions if each.request_id == mine), None))
    assert completed.usage is not None
    assert completed.usage.completion_tokens == 5
    assert '"usage"' not in text
    assert text.endswith("data: [DONE]\n\n")
