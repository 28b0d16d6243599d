"""Lookup and populating, with the edge played by the test."""

import asyncio
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pointsman_contracts.cache import CachePurge
from pointsman_contracts.journey import Journey, RequestFacts, Stage, StageReport, Target
from pointsman_contracts.reply import Answer, Parked
from pointsman_contracts.response import Usage
from pointsman_core.fingerprint import deciding, fingerprint
from pointsman_embedding.embedder import Vector
from pointsman_embedding.embedders import LexicalEmbedder
from pointsman_journey.content_client import ContentGone
from pointsman_runtime.bus.errors import NoReply
from pointsman_semantic_cache.adapters import stores
from pointsman_semantic_cache.domain.memory import MemoryStore
from pointsman_testing import eventually

from .world import ASKED, GUARD, LEXICAL, USAGE, USUAL, WHOLE, World, told

SHADOWED = {"stage": "guard", "mode": "shadow"}
LAST: Mapping[str, object] = {"response": [], "postprocessing": ["semantic-cache"]}
GUARDED_LAST: Mapping[str, object] = {"response": [], "postprocessing": ["guard", "semantic-cache"]}


def chained(**chains: object) -> Mapping[str, object]:
    """A configuration with `request`, `response` and whole sections in the place of the usual ones."""
    profile = {way: chains.pop(way, USUAL[way]) for way in USUAL}
    return LEXICAL | {"profiles": {"standard": profile}} | chains


async def test_vectors_that_become_longer_are_kept_apart_from_those_before(monkeypatch: pytest.MonkeyPatch) -> None:
    places = 2

    async def embed(embedder: LexicalEmbedder, text: str) -> Vector:
        return np.eye(places, dtype=np.float32)[0]

    monkeypatch.setattr(LexicalEmbedder, "embed", embed)
    world = World()
    first = await world.look_up("Is it true that aspirin is safe for dogs?")
    assert (told(first), await world.keep(first)) == ("miss", "kept")
    places = 3
    second = await world.look_up()
    assert (told(second), await world.keep(second)) == ("miss", "kept")
    assert told(await world.look_up("Is aspirin safe for the dogs?")) == "semantic"


@pytest.mark.requirement("S3-13", "S3-23")
async def test_a_request_that_was_answered_is_answered_again_at_no_tokens() -> None:
    world = World()
    first = await world.look_up()
    assert (told(first), await world.keep(first)) == ("miss", "kept")
    again = await world.look_up()
    assert isinstance(again, Answer)
    assert (told(again), again.body, again.named) == ("hit", WHOLE, "llama-8b")
    assert (again.usage, again.saved) == (Usage(), USAGE)
    assert [edit.value for edit in again.answer_headers if edit.name == "age"] == ["0"]
    # No guard is configured, so no guard has checked it: the stages of the profile still do.
    assert again.response == (GUARD,)
    assert again.trail[-1].outcome == "answered"


async def test_the_tokens_of_the_first_answer_are_charged_again_where_that_is_wanted() -> None:
    world = World({"caches": {"default": {"count_tokens": True}}})
    await world.keep(await world.look_up())
    again = await world.look_up()
    assert isinstance(again, Answer)
    assert (again.usage, again.saved) == (USAGE, None)


@pytest.mark.requirement("S3-22")
async def test_a_question_that_means_the_same_gets_the_answer_and_one_that_does_not_goes_on() -> None:
    world = World()
    await world.keep(await world.look_up("How do I make pancakes with eggs?"))
    meant = await world.look_up("How can I make pancakes with eggs?")
    assert isinstance(meant, Answer)
    assert told(meant) == "semantic"
    assert meant.trail[-1].note == "semantic, 0 s old: lexical 1.000"
    without = await world.look_up("How do I make pancakes without eggs?")
    assert isinstance(without, Journey)
    assert (told(without), without.trail[-1].note) == ("miss", "miss: lexical: close, but for negation")


async def test_the_very_same_request_is_found_without_its_text_where_its_fingerprint_is_known() -> None:
    world = World({"caches": {"default": {}}})
    world.edge.problem = ContentGone("edge-1")
    first = await world.look_up(fingerprint=b"one")
    assert (told(first), await world.keep(first)) == ("miss", "kept")
    assert told(await world.look_up(fingerprint=b"one")) == "hit"
    assert told(await world.look_up(fingerprint=b"two")) == "miss"
    # Who looks for the meaning too reads the text, and finds the same entry.
    meaning = World()
    document = {"model": "llama-8b", "messages": [{"role": "user", "content": ASKED}]}
    said = fingerprint("chat.completions", deciding(document))
    await meaning.keep(await meaning.look_up(fingerprint=said))
    assert told(await meaning.look_up()) == "hit"
    assert told(await meaning.look_up(fingerprint=b"another")) == "semantic"


@pytest.mark.requirement("CACHE-5", "S3-20")
async def test_nothing_is_shared_between_tenants_models_or_whatever_else_parts_them() -> None:
    world = World({"caches": {"default": {"embeddings": "lexical", "per": ["tenant", "subject"]}}})
    await world.keep(await world.look_up(subject="ann"))
    assert told(await world.look_up(subject="ann")) == "hit"
    others: list[dict[str, Any]] = [
        {"tenant": "globex", "subject": "ann"},
        {"tenant": "", "subject": "ann"},
        {"subject": "bob"},
        {"subject": "ann", "target": Target(model="llama-8b", pool="other")},
        {"subject": "ann", "target": Target(model="llama-8b", provider="llama-8b")},
        {"subject": "ann", "target": Target(model="other", pool="llama-8b")},
    ]
    assert [told(await world.look_up(**other)) for other in others] == ["miss"] * len(others)


@pytest.mark.requirement("CACHE-3")
async def test_another_policy_begins_anew() -> None:
    world = World()
    await world.keep(await world.look_up())
    guarded = {"request": ["guard", "semantic-cache", "scheduler"], "response": ["guard", "semantic-cache"]}
    world.apply(2, LEXICAL | {"profiles": {"standard": guarded}})
    changed = await world.look_up(revision=2)
    assert told(changed) == "miss"
    assert told(await world.look_up()) == "hit"
    unchecked: list[tuple[StageReport, ...]] = [(), (StageReport(stage="guard", instance="g", outcome="skipped"),)]
    for stages in unchecked:
        assert await world.keep(changed, stages=stages) == "guard"
    assert told(await world.look_up(revision=2)) == "miss"
    assert await world.keep(changed) == "kept"
    hit = await world.look_up(revision=2)
    assert isinstance(hit, Answer)
    # No guard has said by what it judges, so that it may judge otherwise by now.
    assert hit.response == (GUARD,)
    world.apply(3, LEXICAL | {"profiles": {"standard": guarded}, "guards": {"default": {"otherwise": "flag"}}})
    assert told(await world.look_up(revision=3)) == "miss"


@pytest.mark.requirement("CACHE-3")
@pytest.mark.parametrize(
    ("before", "after", "found"),
    [
        ({}, {"request": ["guard", "semantic-cache", "scheduler"]}, "miss"),
        ({}, {"response": ["guard", "semantic-cache"]}, "miss"),
        (LAST, GUARDED_LAST, "miss"),
        ({}, {"guards": {"default": {"otherwise": "flag"}}}, "miss"),
        ({"response": [SHADOWED, "semantic-cache"]}, {"response": ["guard", "semantic-cache"]}, "miss"),
        # A stage that is off has no say, and a stage's timeout says nothing of the answer.
        ({}, {"request": [{"stage": "guard", "mode": "off"}, "semantic-cache", "scheduler"]}, "hit"),
        ({}, {"response": [{"stage": "guard", "mode": "off"}, "semantic-cache"]}, "hit"),
        ({}, {"request": ["semantic-cache", {"stage": "scheduler", "timeout": "7s"}]}, "hit"),
        ({}, {"response": [{"stage": "semantic-cache", "timeout": "7s"}]}, "hit"),
        (LAST, {"response": [], "postprocessing": [{"stage": "semantic-cache", "timeout": "7s"}]}, "hit"),
        ({"stages": {"audit": {}}}, {"stages": {"audit": {"timeout": "7s"}}}, "hit"),
        ({"stages": {"audit": {}}}, {"stages": {"audit": {"mode": "buffer"}}}, "miss"),
    ],
)
async def test_each_thing_that_decides_what_an_answer_may_say_begins_anew_and_nothing_else_does(
    before: Mapping[str, object], after: Mapping[str, object], found: str
) -> None:
    world = World(chained(**before))
    assert await world.keep(await world.look_up()) == "kept"
    world.apply(2, chained(**after))
    assert told(await world.look_up(revision=2)) == found


@pytest.mark.requirement("CACHE-3")
@pytest.mark.parametrize(
    ("chains", "noted"),
    [
        ({"response": ["guard", "semantic-cache"]}, "guard"),
        (GUARDED_LAST, "guard"),
        # It looks at prompts alone.
        ({"request": ["guard", "semantic-cache", "scheduler"]}, "kept"),
        ({"response": [{"stage": "guard", "mode": "off"}, "semantic-cache"]}, "kept"),
        ({"response": [SHADOWED, "semantic-cache"]}, "kept"),
        ({"response": [], "postprocessing": [SHADOWED, "semantic-cache"]}, "kept"),
    ],
)
async def test_an_answer_is_kept_unseen_only_where_no_guard_has_a_say_in_answers(
    chains: Mapping[str, object], noted: str
) -> None:
    world = World(chained(**chains))
    assert await world.keep(await world.look_up(), stages=()) == noted


@pytest.mark.requirement("CACHE-3")
async def test_an_answer_that_a_guard_let_pass_is_checked_anew_once_the_guard_judges_by_something_else() -> None:
    guarded = {"request": ["guard", "semantic-cache", "scheduler"], "response": ["guard", "semantic-cache"]}
    world = World(LEXICAL | {"profiles": {"standard": guarded}})
    before, after = ({"guard": {"policy": "default", "epoch": epoch}} for epoch in ("one", "two"))
    assert await world.keep(await world.look_up(attributes=before)) == "kept"
    checked = await world.look_up(attributes=before)
    assert isinstance(checked, Answer)
    assert (told(checked), checked.response) == ("hit", ())
    for later in (await world.look_up(attributes=after), await world.look_up("Is aspirin safe for my dogs?")):
        assert told(later) == "miss"
    restoring = {"guard": {"policy": "default", "epoch": "one", "restores": True}}
    passed = await world.look_up(attributes=restoring)
    assert isinstance(passed, Journey)
    assert (told(passed), [stage.memo for stage in passed.response]) == ("bypass", [None, None])


@pytest.mark.requirement("CACHE-5", "S3-20")
async def test_people_without_a_tenant_share_no_answers_and_nameless_clients_share_none_at_all() -> None:
    world = World()

    async def asked(**said: str) -> Journey | Answer:
        return await world.look_up(attributes={"identity": {"tenant": "", "source": "jwt-auth"} | said})

    await world.keep(await asked(subject="ann"))
    assert told(await asked(subject="ann")) == "hit"
    assert told(await asked(subject="bob")) == "miss"
    assert told(await asked(subject="ann", source="another-issuer")) == "miss"
    assert told(await asked(subject="")) == "bypass"
    assert told(await world.look_up(tenant="")) == "miss"
    await world.keep(await world.look_up(tenant=""))
    assert told(await world.look_up(tenant="")) == "hit"


@pytest.mark.requirement("CACHE-5", "S3-20")
async def test_tenants_and_subjects_whose_names_begin_alike_share_no_answers_however_long_that_is() -> None:
    world = World({"caches": {"default": {"per": ["tenant", "subject"]}}})
    alike = "a" * 1500
    people = [(alike + "1", ""), (alike + "2", ""), (alike[:256], ""), ("acme", alike + "1"), ("acme", alike + "2")]
    for tenant, subject in people:
        asked = await world.look_up(tenant=tenant, subject=subject)
        assert told(asked) == "miss"
        await world.keep(asked)
    assert [told(await world.look_up(tenant=tenant, subject=subject)) for tenant, subject in people] == ["hit"] * 5
    # A tenant whose name equals another's place has a place of its own.
    places = {partition.tenant for partition, _ in world.stores.memory.list_entries()}
    for place in places - {tenant for tenant, _ in people}:
        assert told(await world.look_up(tenant=place)) == "miss"
    assert (await world.handlers.purge(CachePurge(tenant=alike + "1"))).entries == 1


@pytest.mark.requirement("CACHE-4")
async def test_a_client_may_pass_the_cache_by() -> None:
    world = World()
    kept = await world.look_up()
    await world.keep(kept)
    passed = await world.look_up(headers={"cache-control": "no-store"})
    assert isinstance(passed, Journey)
    assert (told(passed), [stage.memo for stage in passed.response]) == ("bypass", [None, None])
    fresh = await world.look_up(headers={"cache-control": "no-cache"})
    assert (told(fresh), await world.keep(fresh, body=WHOLE.replace(b"hi", b"ho"))) == ("miss", "kept")
    again = await world.look_up(headers={"cache-control": "max-age=60"})
    assert isinstance(again, Answer)
    assert b"ho" in again.body


async def test_requests_that_want_another_answer_each_time_pass() -> None:
    world = World({"caches": {"default": {"max_temperature": 0.5}}})
    assert [told(await world.look_up(fields=fields)) for fields in ({}, {"temperature": 1}, {"temperature": 0.2})] == [
        "bypass", "bypass", "miss",
    ]  # fmt: skip


async def test_an_answer_of_a_fallback_is_not_kept_for_the_model_that_was_meant() -> None:
    world = World()
    first = await world.look_up()
    assert await world.keep(first, target=Target(model="other", pool="llama-8b")) == "another model"
    assert await world.keep(first, memo="gibberish") == "memo unreadable"
    assert await world.keep(first, memo=None) == "not looked up"
    assert told(await world.look_up()) == "miss"


@pytest.mark.requirement("CASCADE-2")
async def test_an_answer_that_a_cascade_gave_for_want_of_a_better_one_is_not_kept() -> None:
    world = World()
    first = await world.look_up()
    assert await world.keep(first, makeshift=True) == "not confident"


async def test_lookups_and_answers_are_counted_by_outcome_and_the_clients_plan() -> None:
    world = World()
    await world.keep(await world.look_up(plan="gold"), plan="gold")
    await world.look_up(plan="gold")
    await world.keep(await world.look_up("Is it?", tenant=""), status=500)

    def count(name: str, **labels: str) -> float | None:
        return world.registry.get_sample_value(f"pointsman_cache_{name}_total", {"cache": "default", **labels})

    assert [count("lookups", result=result, plan="gold") for result in ("miss", "hit")] == [1, 1]
    assert count("lookups", result="miss", plan="") == 1
    assert count("answers", outcome="kept", plan="gold") == count("answers", outcome="error", plan="") == 1


async def test_answers_count_for_their_time() -> None:
    world = World({"caches": {"default": {"ttl": "1ms", "embeddings": "lexical"}}})
    await world.keep(await world.look_up())
    until = time.monotonic() + 0.002
    while time.monotonic() < until:
        pass
    assert told(await world.look_up()) == "miss"


async def test_a_purge_forgets_a_tenants_answers_and_no_others() -> None:
    world = World()
    for tenant in ("acme", "globex", ""):
        await world.keep(await world.look_up(tenant=tenant))
    purged = await world.handlers.purge(CachePurge(tenant="acme"))
    assert (purged.instance, purged.entries) == ("cache-1", 1)
    assert [told(await world.look_up(tenant=tenant)) for tenant in ("acme", "globex", "")] == ["miss", "hit", "hit"]
    assert (await world.handlers.purge(CachePurge(tenant=""))).entries == 1
    assert (await world.handlers.purge(CachePurge(cache="other"))).entries == 0
    assert (await world.handlers.purge(CachePurge())).entries == 1


async def test_a_purge_reaches_databases_that_this_process_has_not_asked_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    database = MemoryStore()

    def opened(url: str) -> MemoryStore:
        assert url == "postgresql://database"
        return database

    monkeypatch.setattr(stores, "PostgresStore", opened)
    monkeypatch.setenv("DATABASE", "postgresql://database")
    shared = {"caches": {"default": {"store": {"use": "postgres", "url": "env:DATABASE"}}}}
    before = World(shared)
    await before.keep(await before.look_up())
    assert (await World(shared).handlers.purge(CachePurge(cache="other"))).entries == 0
    assert (await World(shared).handlers.purge(CachePurge())).entries == 1
    assert told(await before.look_up()) == "miss"
    monkeypatch.delenv("DATABASE")
    failed = await World(shared).handlers.purge(CachePurge())
    assert (failed.entries, failed.problem) == (0, "store unavailable")


async def test_purged_entries_do_not_come_back_with_the_snapshot_of_a_process_that_is_killed(tmp_path: Path) -> None:
    world = World(folder=tmp_path)
    for tenant in ("acme", "globex"):
        await world.keep(await world.look_up(tenant=tenant))
    world.stores.tick(0)
    await asyncio.sleep(0)  # now it writes both
    await world.handlers.purge(CachePurge(tenant="acme"))
    file = tmp_path / stores.FILE
    assert not file.exists(), "killed now it would begin with nothing"
    await eventually(file.exists)
    restarted = World(folder=tmp_path)
    restarted.stores.load_snapshot(0)
    assert [told(await restarted.look_up(tenant=tenant)) for tenant in ("acme", "globex")] == ["miss", "hit"]
    file.unlink()
    file.mkdir()
    assert (await world.handlers.purge(CachePurge())).problem == "snapshot unavailable"


async def test_a_missing_dependency_degrades_the_request_and_does_not_end_it(tmp_path: Path) -> None:
    world = World({"caches": {"default": {"embeddings": {"use": "onnx", "directory": str(tmp_path)}}}})
    first = await world.look_up()
    assert isinstance(first, Journey)
    assert (first.level, first.reasons) == ("degraded", ("semantic-cache: embeddings unavailable",))
    assert await world.keep(first) == "kept"
    assert told(await world.look_up()) == "hit"
    world.edge.problem = NoReply("edge-1", 0.4)
    unanswered = await world.look_up("something else")
    assert isinstance(unanswered, Journey)
    assert unanswered.reasons == ("semantic-cache: content unavailable",)
    world.edge.problem = ContentGone("edge-1")
    left = await world.look_up("something else")
    assert isinstance(left, Journey)
    assert (told(left), left.level) == ("bypass", "full")
    assert (await world.look_up(itinerary=(Stage(service="semantic-cache", policy="none"),))).level == "full"


def exactly(**fields: object) -> Mapping[str, object]:
    """A configuration without embeddings."""
    return {"caches": {"default": fields}}


async def _at_once(world: World, count: int) -> list["asyncio.Task[Journey | Answer]"]:
    """The same request again, so many times, while another one is under way."""
    tasks = [
        asyncio.get_running_loop().create_task(world.look_up(fingerprint=b"f", request_id=f"r-{number}"))
        for number in range(count)
    ]
    await eventually(lambda: len(world.parked) == count)
    return tasks


@pytest.mark.parametrize("kind", ["application/json", "text/event-stream"])
async def test_of_the_same_requests_at_once_one_asks_a_model_and_the_others_get_its_answer(kind: str) -> None:
    world = World(exactly(wait="1h"))
    first = await world.look_up(fingerprint=b"f", request_id="first")
    assert told(first) == "miss"
    others = await _at_once(world, 5)
    assert [type(each) for each in world.parked] == [Parked] * 5
    assert await world.keep(first, headers={"content-type": kind}) == "kept"
    answers = await asyncio.gather(*others)
    assert [told(each) for each in answers] == ["hit"] * 5
    assert {each.content_type for each in answers if isinstance(each, Answer)} == {kind}


async def test_when_the_first_of_the_same_requests_fails_the_others_go_on_by_themselves() -> None:
    world = World(exactly(wait="1h"))
    first = await world.look_up(fingerprint=b"f", request_id="first")
    others = await _at_once(world, 3)
    assert await world.keep(first, status=502, outcome="engine_error") == "error"
    assert [told(each) for each in await asyncio.gather(*others)] == ["miss"] * 3


async def test_the_answer_to_the_same_request_is_waited_for_no_longer_than_configured() -> None:
    world = World(exactly(wait="50ms"))
    await world.look_up(fingerprint=b"f", request_id="first")
    [other] = await _at_once(world, 1)
    assert told(await other) == "miss"


@pytest.mark.parametrize(
    ("config", "alone", "changes"),
    [
        (exactly(wait="1h", single_flight=False), True, {}),
        (exactly(wait="1h"), False, {}),
        (exactly(wait="1h"), True, {"tenant": "another"}),
        (exactly(wait="1h"), True, {"fingerprint": b"g"}),
        (exactly(wait="1h"), True, {"headers": {"cache-control": "no-cache"}}),
        (exactly(wait="1h"), True, {"request_id": "first", "attempt": 2}),
    ],
)
async def test_a_different_request_waits_for_nothing(
    config: Mapping[str, object], alone: bool, changes: Mapping[str, Any]
) -> None:
    world = World(config)
    world.alone = alone
    await world.look_up(fingerprint=b"f", request_id="first")
    second: dict[str, Any] = {"fingerprint": b"f", "request_id": "second", **changes}
    assert told(await world.look_up(**second)) == "miss"
    assert world.parked == []


async def test_a_request_that_passes_as_it_is_bypasses_the_cache() -> None:
    world = World()
    passing = RequestFacts(api="audio.transcriptions", attributes={"identity": {"tenant": "acme"}})
    outcome = await world.look_up(request=passing)
    assert isinstance(outcome, Journey)
    assert told(outcome) == "bypass"
    assert all(stage.memo is None for stage in outcome.response)
