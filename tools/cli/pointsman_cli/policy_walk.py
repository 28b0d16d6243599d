"""What each stage would do to one request, found out without a bus: by the services' own domain code."""

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple, NoReturn

from pydantic import JsonValue

from pointsman_cli.sample_request import Sample
from pointsman_contracts.journey import Journey, PreprocessRequest, StageReport, Target
from pointsman_core.config import DEFAULT_GUARD, Config, ProcessorUse, StageUse, active
from pointsman_core.permission import allowed_models
from pointsman_core.refusal import Refusal
from pointsman_edge.domain.request_headers import HeaderRules
from pointsman_edge.domain.routes import METHOD
from pointsman_guard.configuration import compile_all as compile_guards
from pointsman_guard.domain import words
from pointsman_guard.domain.checking import Checked, DetectorFailed, Embedder
from pointsman_guard.domain.policy import Policy
from pointsman_guard.domain.prompt import Prompt
from pointsman_model_selector.configuration import compile_all as compile_selectors
from pointsman_model_selector.domain.candidate import Standing
from pointsman_model_selector.domain.selecting import Question
from pointsman_model_selector.domain.selector import CompiledSelector
from pointsman_preprocessor.configuration import compile_pipeline
from pointsman_preprocessor.domain.chain import Chain
from pointsman_preprocessor.domain.parse import parse
from pointsman_preprocessor.domain.pipeline import depart, describe
from pointsman_preprocessor.domain.processing import IDENTITY, Incoming
from pointsman_preprocessor.domain.request_headers import read_headers
from pointsman_profile_picker.configuration import compile_routing
from pointsman_profile_picker.domain.picking import PickError
from pointsman_profile_picker.domain.pools import PoolStates
from pointsman_profile_picker.domain.route import settled

REQUEST_S: Final = 600.0
PATIENCE_S: Final = 5.0
"""For processors that wait for something."""

Headers = Mapping[str, str]


class Row(NamedTuple):
    """One stage."""

    stage: str
    mode: str
    """`enforce`, `shadow` or `off`; empty for what has no switch."""
    outcome: str
    """As `StageReport.outcome`; `off`, `not reached`, or `bus` for what only a running gateway can say."""
    took_ms: float | None
    note: str


class Walk(NamedTuple):
    """The whole way."""

    rows: list[Row]
    refusal: Refusal | None
    identity: dict[str, JsonValue] | None
    target: Target | None


async def walk(config: Config, sample: Sample, *, trusted: bool = False) -> Walk:
    """Try the request. `trusted`: it comes from a trusted proxy."""
    rows: list[Row] = []
    try:
        headers, row = _edge(sample, trusted=trusted)
        rows.append(row)
        incoming = _incoming(sample, headers)
    except Refusal as refusal:
        rows.append(Row("edge" if not rows else "preprocessor", "", "rejected", None, _words(refusal)))
        return Walk(rows, refusal, None, None)
    refusal = await _preprocess(config, incoming, rows)
    identity = incoming.read(IDENTITY)
    if refusal is not None:
        return Walk(rows, refusal, identity, None)
    routing = compile_routing(config)
    journey = depart(incoming, describe(incoming, (64,)), StageReport(stage="preprocessor", instance="policy-test"))
    pools = PoolStates()
    now_s = time.monotonic()
    try:
        picked = routing.pick(journey, pools, now_s)
    except (Refusal, PickError) as error:
        told = error if isinstance(error, Refusal) else Refusal(500, str(error), code="profile_pick_failed")
        rows.append(Row("profile-picker", "", "rejected", None, _words(told)))
        return Walk(rows, told, identity, None)
    rows.append(Row("profile-picker", "", "passed", None, f"{picked.profile}: {picked.note}"))
    journey = journey.model_copy(update={"profile": picked.profile})
    if not picked.route.selects:
        try:
            allowed = allowed_models(journey.request.attributes)
            target = routing.target(journey.wanted, pools, journey.model, allowed)
        except Refusal as error:
            rows.append(Row("profile-picker", "", "rejected", None, _words(error)))
            return Walk(rows, error, identity, None)
        journey = journey.model_copy(update=settled(journey, target, None))
    profile = config.profiles[picked.profile]
    return await _stages(config, sample, journey, profile.request, rows, identity, [*profile.response])


def _edge(sample: Sample, *, trusted: bool) -> tuple[Headers, Row]:
    read = HeaderRules().read(sample.headers, trusted=trusted)
    stripped = [name.decode() for name, _ in sample.headers if name.decode() not in read.stages]
    kept = {name for name, _ in read.engine}
    held = [name for name in read.stages if name.encode() not in kept]
    notes = [f"stripped {', '.join(stripped)}"] if stripped else []
    notes += [f"kept from engines: {', '.join(held)}"] if held else []
    return read.stages, Row("edge", "", "passed", None, "; ".join(notes))


def _incoming(sample: Sample, headers: Headers) -> Incoming:
    now_ms = time.time_ns() // 1_000_000
    request = PreprocessRequest(
        request_id="policy-test",
        edge="policy-test",
        received_ms=now_ms,
        deadline_ms=now_ms + round(REQUEST_S * 1000),
        revision=0,
        method=METHOD,
        path=sample.path,
        headers=dict(headers),
    )
    return Incoming(request, parse(sample.path, sample.body), read_headers(request.headers))


async def _preprocess(config: Config, incoming: Incoming, rows: list[Row]) -> Refusal | None:
    """Run the processors. Those that can't do without somebody are left out, as by `on_error: allow`."""
    chain = Chain([step._replace(on_error="allow") for step in compile_pipeline(config).steps])
    refusal: Refusal | None = None
    try:
        waiting = chain.run(incoming)
        if waiting is not None:
            async with asyncio.timeout(PATIENCE_S):
                await waiting
    except Refusal as error:
        refusal = error
    verdicts = {verdict.processor: verdict for verdict in incoming.verdicts}
    reached = True
    for name, mode in _processors(config.preprocessing, [step.processor.name for step in chain.steps]):
        verdict = verdicts.get(name)
        if verdict is None:
            outcome = "off" if mode == "off" else "passed" if reached else "not reached"
            rows.append(Row(name, mode, outcome, None, ""))
            continue
        note = _words(refusal) if verdict.outcome == "rejected" and refusal is not None else verdict.note or ""
        outcome = "bus" if verdict.outcome == "skipped" else verdict.outcome
        rows.append(Row(name, mode, outcome, verdict.took_ms, note))
        reached = reached and verdict.outcome != "rejected"
    return refusal


def _processors(uses: Sequence[ProcessorUse], running: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Name and mode of each, those that are off at their places, those that were added where they run."""
    modes = {use.name or use.use: use.mode for use in uses}
    left = list(running)
    for use in uses:
        name = use.name or use.use
        if use.mode == "off":
            yield name, "off"
            continue
        while left and left[0] not in modes:
            yield left.pop(0), "enforce"
        if left:
            left.pop(0)
        yield name, use.mode
    for name in left:
        yield name, "enforce"


async def _stages(
    config: Config,
    sample: Sample,
    journey: Journey,
    stages: Sequence[StageUse],
    rows: list[Row],
    identity: dict[str, JsonValue] | None,
    back: Sequence[StageUse],
) -> Walk:
    refusal: Refusal | None = None
    compiled = _Compiled(compile_selectors(config), compile_guards(config, _Nobody()))
    for use in stages:
        mode = "off" if use.mode == "off" else "shadow" if use.shadow else "enforce"
        if mode == "off" or refusal is not None:
            rows.append(Row(use.stage, mode, "off" if mode == "off" else "not reached", None, ""))
            continue
        began = time.perf_counter()
        try:
            outcome, note, journey = await _stage(compiled, sample, journey, use)
        except Refusal as error:
            outcome, note = "rejected", _words(error)
            refusal = None if use.shadow else error
        took_ms = None if outcome == "bus" else round((time.perf_counter() - began) * 1000, 3)
        rows.append(Row(use.stage, mode, f"shadow_{outcome}" if use.shadow else outcome, took_ms, note))
    rows += [
        Row(f"answer: {use.stage}", "shadow" if use.shadow else "enforce", "bus", None, "sees the answer")
        for use in active([*back, *config.postprocessing])
    ]
    return Walk(rows, refusal, identity, journey.target)


class _Compiled(NamedTuple):
    selectors: Mapping[str, CompiledSelector]
    guards: Mapping[str, Policy]


async def _stage(compiled: _Compiled, sample: Sample, journey: Journey, use: StageUse) -> tuple[str, str, Journey]:
    """Outcome, note and the journey behind it. Raises Refusal."""
    if use.service == "model-selector":
        question = Question(journey, Standing(), time.monotonic(), time.time_ns() // 1_000_000)
        selected = compiled.selectors[use.policy or ""].select(question)
        after = journey if use.shadow else journey.model_copy(update={"target": selected.model.target})
        return "passed", selected.note, after
    if use.service == "guard":
        policy = compiled.guards[use.policy or DEFAULT_GUARD]
        prompt = Prompt.of(sample.body)
        judgement = await policy.judge(
            Checked("request", policy.name, journey.request_id, prompt.texts), prompt.unreadable
        )
        if judgement.blocked is not None:
            raise Refusal(403, words.prompt_blocked(policy.name, judgement.blocked.category), code="content_filter")
        return "passed", words.note(policy.name, judgement), journey
    if use.service == "scheduler" and journey.target is not None:
        target = journey.target
        where = f"pool {target.pool}: its scheduler chooses" if target.pool else f"provider {target.provider}"
        return "bus", f"{target.model}, {where}", journey
    return "bus", "asked on the bus", journey


class _Nobody:
    """Detectors that ask somebody get no answer here."""

    async def post(
        self, url: str, document: JsonValue, *, credential: str | None, headers: Mapping[str, str], timeout_s: float
    ) -> JsonValue:
        """As `Outside.post`."""
        del document, credential, headers, timeout_s
        raise DetectorFailed(f"{url} isn't asked here")

    def read(self, path: str) -> bytes:
        """As `Outside.read`."""
        return Path(path).read_bytes()

    def embedder(self, folder: str) -> Embedder:
        """As `Outside.embedder`."""
        return _NoModel(folder)


class _NoModel:
    """Embedding models are on the guard's disk."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    async def embed(self, texts: Sequence[str]) -> NoReturn:
        """As `Embedder.embed`."""
        del texts
        raise DetectorFailed(f"{self._folder} isn't loaded here")


def _words(refusal: Refusal) -> str:
    return f"{refusal.status} {refusal.code or refusal.type}: {refusal.message}"
