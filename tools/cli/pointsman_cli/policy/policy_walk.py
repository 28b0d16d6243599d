"""The result of each stage for one request, computed without a bus by the services' own domain code."""

import asyncio
import time
from collections.abc import Mapping
from typing import Final, NamedTuple

from pydantic import JsonValue

from pointsman_apis.requests import parse
from pointsman_cli.policy.absent_detectors import AbsentOutside
from pointsman_cli.policy.policy_rows import (
    ANSWER,
    EITHER,
    REFUSAL,
    Row,
    answers,
    mode_of,
    processors,
    unpicked,
    unreached_processors,
    unsettled,
)
from pointsman_cli.sample_request import SampleRequest
from pointsman_contracts.journey import Journey, PreprocessRequest, StageReport, Target
from pointsman_core.config import DEFAULT_GUARD, Config, Profile, StageUse
from pointsman_core.permission import allowed_models
from pointsman_core.refusal import Refusal
from pointsman_core.settled_target import settled
from pointsman_edge.taking_in.request_headers import HeaderRules
from pointsman_guard.configuration import compile_all as compile_guards
from pointsman_guard.domain import words
from pointsman_guard.domain.policy import GuardPolicy
from pointsman_guard.domain.prompt import GuardedPrompt
from pointsman_model_selector.configuration import compile_all as compile_selectors
from pointsman_model_selector.domain.selector import CompiledSelector
from pointsman_plugins.guarding import Checked
from pointsman_plugins.picking import PickError, PoolStates
from pointsman_plugins.preprocessing import IDENTITY, Incoming, ProcessorVerdict
from pointsman_plugins.selecting import ModelQuestion, ModelStates
from pointsman_preprocessor.configuration import compile_pipeline
from pointsman_preprocessor.domain.admission import Admission
from pointsman_preprocessor.domain.chain import Chain
from pointsman_preprocessor.domain.pipeline import depart, describe
from pointsman_preprocessor.domain.request_headers import read_headers
from pointsman_profile_picker.configuration import compile_routing

REQUEST_S: Final = 600.0
PATIENCE_S: Final = 5.0
"""Seconds for processors that wait for a peer."""

Headers = Mapping[str, str]


class Walk(NamedTuple):
    """The whole way."""

    rows: list[Row]
    refusal: Refusal | None
    identity: dict[str, JsonValue] | None
    target: Target | None


async def walk(config: Config, sample: SampleRequest, *, trusted: bool = False) -> Walk:
    """Try the request. `trusted`: it comes from a trusted proxy."""
    rows: list[Row] = []
    try:
        headers, row = _edge(sample, trusted=trusted)
        rows.append(row)
        incoming = _incoming(sample, headers)
    except Refusal as refusal:
        rows.append(Row("edge" if not rows else "preprocessor", "", "rejected", None, _words(refusal)))
        running = [step.processor.name for step in compile_pipeline(config).steps]
        rows += [*unreached_processors(config.preprocessing, running), *unpicked(config)]
        return Walk(rows, refusal, None, None)
    refusal, decided = await _preprocess(config, incoming, rows)
    identity = incoming.read(IDENTITY)
    if not decided:
        return Walk([*rows, *unpicked(config, EITHER)], None, None, None)
    if refusal is not None:
        return Walk([*rows, *unpicked(config)], refusal, identity, None)
    routing = compile_routing(config)
    journey = depart(incoming, describe(incoming, (64,)), StageReport(stage="preprocessor", instance="policy-test"))
    pools = PoolStates()
    now_s = time.monotonic()
    try:
        picked = routing.pick_profile(journey, pools, now_s)
    except (Refusal, PickError) as error:
        told = error if isinstance(error, Refusal) else Refusal(500, str(error), code="profile_pick_failed")
        rows.append(Row("profile-picker", "", "rejected", None, _words(told)))
        return Walk([*rows, *unsettled(config, None)], told, identity, None)
    rows.append(Row("profile-picker", "", "passed", None, f"{picked.profile}: {picked.note}"))
    journey = journey.changed(profile=picked.profile)
    if not picked.route.selects:
        try:
            allowed = allowed_models(journey.request.attributes)
            serving = routing.find_serving(journey.wanted, pools, journey.model, allowed)
        except Refusal as error:
            rows.append(Row("profile-picker", "", "rejected", None, _words(error)))
            return Walk([*rows, *unsettled(config, picked.profile)], error, identity, None)
        journey = journey.changed(**settled(journey, serving.target, None))
    profile = config.profiles[picked.profile]
    return await _stages(config=config, sample=sample, journey=journey, profile=profile, rows=rows, identity=identity)


def _edge(sample: SampleRequest, *, trusted: bool) -> tuple[Headers, Row]:
    read = HeaderRules().read(sample.headers, trusted=trusted)
    stripped = [name.decode() for name, _ in sample.headers if name.decode() not in read.stages]
    kept = {name for name, _ in read.engine}
    held = [name for name in read.stages if name.encode() not in kept]
    notes = [f"stripped {', '.join(stripped)}"] if stripped else []
    notes += [f"kept from engines: {', '.join(held)}"] if held else []
    return read.stages, Row("edge", "", "passed", None, "; ".join(notes))


def _incoming(sample: SampleRequest, headers: Headers) -> Incoming:
    now_ms = time.time_ns() // 1_000_000
    request = PreprocessRequest(
        request_id="policy-test",
        edge="policy-test",
        received_ms=now_ms,
        deadline_ms=now_ms + round(REQUEST_S * 1000),
        revision=0,
        method="POST",
        path=sample.path,
        headers=dict(headers),
    )
    incoming = Incoming(request, parse(sample.path, sample.body), read_headers(request.headers))
    incoming.measure()
    return incoming


async def _preprocess(config: Config, incoming: Incoming, rows: list[Row]) -> tuple[Refusal | None, bool]:
    """Run the processors. A processor whose peer is missing is skipped, as with `on_error: allow`. Returns the refusal,
    and whether it is certain."""
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
    unsaid = _unsaid(chain, verdicts)
    reached = True
    for name, mode in processors(config.preprocessing, [step.processor.name for step in chain.steps]):
        verdict = verdicts.get(name)
        if verdict is None:
            outcome = "off" if mode == "off" else "passed" if reached else "not reached"
            rows.append(Row(name, mode, outcome, None, ""))
            continue
        reached = reached and verdict.outcome != "rejected"
        if name == unsaid:
            rows.append(Row(name, mode, "bus", None, "a processor before it may know the credential"))
            continue
        note = _words(refusal) if verdict.outcome == "rejected" and refusal is not None else verdict.note or ""
        outcome = "bus" if verdict.outcome == "skipped" else verdict.outcome
        rows.append(Row(name, mode, outcome, verdict.took_ms, note))
    return refusal, unsaid is None or reached


def _unsaid(chain: Chain, verdicts: Mapping[str, ProcessorVerdict]) -> str | None:
    """The admission, when it refuses a credential that a processor as much in force would know in the gateway."""
    admission = next((step for step in chain.steps if isinstance(step.processor, Admission)), None)
    if admission is None:
        return None
    name = admission.processor.name
    verdict = verdicts.get(name)
    if verdict is None or not verdict.outcome.endswith("rejected"):
        return None
    for step in chain.steps:
        told = verdicts.get(step.processor.name)
        if step.processor.authenticates and step.shadow == admission.shadow and told and told.outcome == "skipped":
            return name
    return None


async def _stages(
    config: Config,
    sample: SampleRequest,
    journey: Journey,
    profile: Profile,
    rows: list[Row],
    identity: dict[str, JsonValue] | None,
) -> Walk:
    refusal: Refusal | None = None
    compiled = _Compiled(compile_selectors(config), compile_guards(config, AbsentOutside()))
    for use in profile.request:
        mode = mode_of(use)
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
        told = f"shadow_{outcome}" if use.shadow and outcome != "bus" else outcome
        rows.append(Row(use.stage, mode, told, took_ms, note))
    rows += answers(profile.response, config.postprocessing, ANSWER if refusal is None else REFUSAL)
    return Walk(rows, refusal, identity, journey.target)


class _Compiled(NamedTuple):
    selectors: Mapping[str, CompiledSelector]
    guards: Mapping[str, GuardPolicy]


async def _stage(
    compiled: _Compiled, sample: SampleRequest, journey: Journey, use: StageUse
) -> tuple[str, str, Journey]:
    """Outcome, note and the journey behind it. Raises Refusal."""
    if use.service == "model-selector":
        question = ModelQuestion(journey, ModelStates(), time.monotonic(), time.time_ns() // 1_000_000)
        selected = compiled.selectors[use.policy or ""].select_model(question)
        after = journey if use.shadow else journey.changed(target=selected.model.target)
        return "passed", selected.note, after
    if use.service == "guard":
        policy = compiled.guards[use.policy or DEFAULT_GUARD]
        prompt = GuardedPrompt.from_body(sample.body, journey.body)
        judgement = await policy.judge_texts(
            Checked("request", policy.name, journey.request_id, prompt.list_texts), prompt.unreadable
        )
        if judgement.blocked is not None:
            raise Refusal(403, words.prompt_blocked(policy.name, judgement.blocked.category), code="content_filter")
        return "bus" if judgement.failures else "passed", words.note(policy.name, judgement), journey
    if use.service == "scheduler" and journey.target is not None:
        target = journey.target
        where = f"pool {target.pool}: its scheduler chooses" if target.pool else f"provider {target.provider}"
        return "bus", f"{target.model}, {where}", journey
    return "bus", "asked on the bus", journey


def _words(refusal: Refusal) -> str:
    return f"{refusal.status} {refusal.code or refusal.type}: {refusal.message}"
