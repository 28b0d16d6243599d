"""A configuration changes while requests run: every process swaps, no request is lost, nothing bad gets in."""

from collections import Counter
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio
import yaml
from openai import AsyncOpenAI, BadRequestError
from pydantic import JsonValue

from pointsman_contracts.response import ResponseCompleted
from pointsman_contracts.scheduling import RequestScheduled
from pointsman_contracts.subjects import ANY
from pointsman_testing import eventually
from pointsman_testing.answered import answered
from pointsman_testing.attendance import attending
from pointsman_testing.observer import observing
from pointsman_testing.stack import Stack, StackFactory
from pointsman_testing.traffic import Traffic

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(240)]

CHEAP, GOOD = "llama-3.1-8b", "sql-lora"
BODY: Mapping[str, JsonValue] = {"model": "auto", "prompt": "Whoever is chosen.", "max_tokens": 2}
STAGES = ("preprocessor", "profile-picker", "model-selector", "scheduler")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(stacks: StackFactory) -> AsyncIterator[Stack]:
    """Two replicas of every stage, with the configuration in the bucket."""
    async with stacks.start(replicas=dict.fromkeys(STAGES, 2), stored=True, speedup=5.0) as started:
        yield started


def shifted(stack: Stack, folder: Path, percent: int) -> str:
    """A file in which this share of `auto` goes to a selector that the first revision doesn't have."""
    document = yaml.safe_load(stack.config.read_text())
    document["selectors"]["quality"] = {"models": [GOOD]}
    document["profiles"]["auto-quality"] = {"request": ["model-selector/quality", "scheduler"], "static": "deny"}
    rules = document["profile-picker"]["rules"]
    rules[-1] = {"when": 'model == "auto"', "share": {"split": {"auto": 100 - percent, "auto-quality": percent}}}
    file = folder / f"shift-{percent}.yaml"
    file.write_text(yaml.safe_dump(document))
    return str(file)


async def apply(stack: Stack, file: str) -> int:
    code, output = await stack.command("config", "apply", "--wait", "60", file)
    assert code == 0, output
    assert "replicas run it" in output
    return int(output.partition("is revision ")[2].partition(";")[0])


@pytest.mark.requirement("S0-27", "S0-28")
async def test_shifting_traffic_between_selectors_under_load_loses_no_request(stack: Stack, tmp_path: Path) -> None:
    async with (
        attending(stack.nats.url) as attendance,
        observing(stack.nats.url) as seen,
        Traffic(f"{stack.door}/v1/completions", 120, BODY) as running,
    ):
        decisions = seen.listen(RequestScheduled, ANY)

        async def chosen(revision: int, count: int) -> Counter[str]:
            """The models of so many decisions of this revision."""
            await eventually(lambda: sum(d.revision == revision for d in decisions) >= count, timeout=60)
            return Counter(d.target.model for d in decisions if d.revision == revision)

        await eventually(lambda: len(decisions) >= 50)
        assert {d.target.model for d in decisions} == {CHEAP}
        shares: dict[int, float] = {}
        for percent in (10, 50):
            revision = await apply(stack, shifted(stack, tmp_path, percent))
            models = await chosen(revision, 300)
            shares[percent] = models[GOOD] / models.total()
            assert {d.profile for d in decisions if d.target.model == GOOD} == {"auto-quality"}
        # Six standard deviations of a fair draw of 300.
        assert 0.01 < shares[10] < 0.21
        assert 0.33 < shares[50] < 0.67
        back = await stack.command("config", "rollback", str(decisions[0].revision))
        assert back[0] == 0, back[1]
        restored = max(int(word) for word in back[1].partition("is revision ")[2].partition(";")[0].split())
        assert set(await chosen(restored, 50)) == {CHEAP}
    assert running.while_all_ran(running.failed(), attendance) == []


@pytest.mark.requirement("S0-28")
async def test_a_request_keeps_the_revision_that_it_began_with(stack: Stack, tmp_path: Path) -> None:
    body = {"model": CHEAP, "prompt": "Count", "max_tokens": 4000, "stream": True, "ignore_eos": True}
    document = yaml.safe_load(stack.config.read_text())
    del document["models"][CHEAP]
    document["pools"]["llama-8b"]["models"] = [GOOD]
    document["selectors"]["cheap"]["models"] = [GOOD]
    file = tmp_path / "without.yaml"
    file.write_text(yaml.safe_dump(document))
    async with observing(stack.nats.url) as seen, aiohttp.ClientSession() as http:
        completions = seen.listen(ResponseCompleted, ANY)

        async def begun() -> tuple[int, aiohttp.ClientResponse]:
            answer = await http.post(f"{stack.door}/v1/completions", json=body)
            return answer.status, answer

        status, response = await answered(begun)
        async with response as answer:
            assert status == 200
            first = await answer.content.readany()
            [engine] = [each for each in stack.engines if each.name == answer.headers["x-simulated-engine"]]
            # However long the change takes, the answer takes longer.
            engine.process.pause()
            try:
                await apply(stack, str(file))
            finally:
                engine.process.resume()
            try:
                mine = answer.headers["x-request-id"]
                ended = [event for event in completions if event.request_id == mine]
                assert ended == []
                rest = await answer.content.read()
            finally:
                code, output = await stack.command("config", "rollback")
                assert code == 0, output
        assert (first + rest).rstrip().endswith(b"data: [DONE]")
        await eventually(lambda: [event.outcome for event in completions if event.request_id == mine] == ["ok"])


@pytest.mark.requirement("S1-20")
async def test_a_canary_behind_one_name_takes_its_share_and_clients_see_that_name_only(
    stack: Stack, tmp_path: Path
) -> None:
    """Requests for `prod` are dealt to two models; a name of a pattern goes to one of them."""
    document = yaml.safe_load(stack.config.read_text())
    document["rewrites"] = [{"match": "prod", "to": {CHEAP: 70, GOOD: 30}}, {"match": "gpt-*", "to": CHEAP}]
    file = tmp_path / "canary.yaml"
    file.write_text(yaml.safe_dump(document))
    revision = await apply(stack, str(file))
    client = AsyncOpenAI(base_url=f"{stack.door}/v1", api_key="none")
    async with observing(stack.nats.url) as seen, client:
        decisions = seen.listen(RequestScheduled, ANY)
        try:

            async def listed() -> bool:
                return "prod" in {model.id async for model in client.models.list()}

            await eventually(listed)
            ids: set[str] = set()
            for _ in range(60):
                answer = await client.completions.with_raw_response.create(
                    model="prod", prompt="Say something.", max_tokens=1
                )
                ids.add(answer.headers["x-request-id"])
                assert answer.parse().model == "prod"
            names = {"prod", "gpt-4o-mini"}
            for name in names:
                stream = await client.chat.completions.create(
                    model=name, messages=[{"role": "user", "content": "hi"}], max_tokens=3, stream=True
                )
                assert {event.model async for event in stream} == {name}
            with pytest.raises(BadRequestError) as refused:
                await client.completions.create(model="gpt-4o", prompt="word " * 400_000, max_tokens=1)
            assert CHEAP not in refused.value.response.text
            await eventually(lambda: ids <= {decision.request_id for decision in decisions})
            await eventually(lambda: names <= {decision.model for decision in decisions})
        finally:
            code, output = await stack.command("config", "rollback")
            assert code == 0, output
    assert {decision.revision for decision in decisions} == {revision}
    assert {decision.model for decision in decisions} <= {*names, "gpt-4o"}
    canary = Counter(decision.target.model for decision in decisions if decision.request_id in ids)
    # Four standard deviations of 60 draws.
    assert 4 <= canary[GOOD] <= 33
    assert canary[CHEAP] + canary[GOOD] == len(ids) == 60
    notes = {decision.trail[0].note for decision in decisions if decision.model == "gpt-4o-mini"}
    assert notes == {f"rewrite gpt-*: {CHEAP}"}


@pytest.mark.requirement("S0-80")
async def test_a_bad_file_is_refused_with_line_and_reason_and_changes_nothing(stack: Stack, tmp_path: Path) -> None:
    before = await stack.command("config", "history")
    document = stack.config.read_text().replace("use: rules", "use: ruels")
    file = tmp_path / "bad.yaml"
    file.write_text(document)
    code, output = await stack.command("config", "apply", str(file))
    assert code == 1
    line = next(number for number, text in enumerate(document.splitlines(), 1) if "ruels" in text)
    assert "did you mean 'rules'?" in output
    assert f"(line {line})" in output
    assert await stack.command("config", "history") == before
    await eventually(lambda: everybody_runs_the_current_one(stack))


async def everybody_runs_the_current_one(stack: Stack) -> bool:
    """The rows of the instances that report, which on a busy machine may be fewer for a moment."""
    code, output = await stack.command("config", "status")
    assert code == 0, output
    current = output.partition("Revision ")[2].partition(" ")[0]
    lines = [line.split() for line in output.splitlines()[1:-1]]
    expected = Counter({service: len(replicas) for service, replicas in stack.services.items()})
    assert Counter(line[0] for line in lines) == expected
    assert {line[2] for line in lines} == {current}
    return True


async def test_status_names_every_replica_and_its_revision(stack: Stack) -> None:
    await eventually(lambda: everybody_runs_the_current_one(stack))


async def test_diff_names_the_keys_and_values_that_would_change(stack: Stack, tmp_path: Path) -> None:
    document = yaml.safe_load(stack.config.read_text())
    code, output = await stack.command("config", "diff", str(stack.config))
    assert code == 0
    assert "means the same as" in output
    document["models"][CHEAP]["quality"] = 0.7
    document["edge"]["max_body"] = "1MiB"
    del document["models"][GOOD]["context"]
    file = tmp_path / "changed.yaml"
    file.write_text(yaml.safe_dump(document))
    code, output = await stack.command("config", "diff", str(file))
    assert code == 0
    assert f"~ models.{CHEAP}.quality: 0.62 → 0.7" in output
    assert "+ edge.max_body: 1048576" in output
    assert f"- models.{GOOD}.context: 131072" in output


async def test_history_shows_each_revision_and_what_it_changed(stack: Stack, tmp_path: Path) -> None:
    document = yaml.safe_load(stack.config.read_text())
    document["models"][CHEAP]["quality"] = 0.71
    file = tmp_path / "better.yaml"
    file.write_text(yaml.safe_dump(document))
    revision = await apply(stack, str(file))
    code, output = await stack.command("config", "history")
    assert code == 0
    newest = output.splitlines()[1]
    assert newest.startswith(f"{revision} (current)")
    assert newest.rstrip().endswith(f"models.{CHEAP}.quality")
    code, output = await stack.command("config", "rollback", "999999")
    assert code == 1
    assert str(revision) in output
    code, output = await stack.command("config", "rollback")
    assert code == 0
    code, output = await stack.command("config", "diff", str(stack.config))
    assert "means the same as" in output


async def test_a_replica_that_hangs_is_not_among_those_that_run_it(stack: Stack) -> None:
    victim = stack.services["scheduler"][1]

    async def listed(schedulers: int) -> bool:
        code, text = await stack.command("config", "status")
        assert code == 0
        return sum(line.startswith("scheduler") for line in text.splitlines()) == schedulers

    victim.pause()
    try:
        await eventually(lambda: listed(1))
    finally:
        victim.resume()
    await eventually(lambda: listed(2))


async def test_applying_a_stage_that_runs_nowhere_names_its_service(stack: Stack, tmp_path: Path) -> None:
    document = yaml.safe_load(stack.config.read_text())
    document["profiles"]["spare"] = {"request": ["guard", "scheduler"]}
    file = tmp_path / "guarded.yaml"
    file.write_text(yaml.safe_dump(document))
    code, output = await stack.command("config", "apply", str(file))
    assert (code, "But no guard is heard, and the profile spare needs one." in output) == (0, True), output

    async def is_heard() -> bool:
        """Every service is, which a busy machine may keep from beating for a while."""
        code, output = await stack.command("config", "apply", str(stack.config))
        assert code == 0, output
        return "is heard" not in output

    await eventually(is_heard)
