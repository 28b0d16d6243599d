"""Each fast path gives the plain way's result, or leaves the case to it; each is a file of its own that names the
benchmark which times it."""

# pyright: reportPrivateUsage=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportAttributeAccessIssue=false, reportUnknownArgumentType=false, reportUnknownLambdaType=false

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman_contracts.journey import RequestFacts
from pointsman_core import json_members
from pointsman_core.one_member import edit_one_member
from pointsman_delay.few_delays import delays
from pointsman_delay.formula import BOUNDLESS, EngineDelay, EngineFigures, ask, delay, stand
from pointsman_delay.pass_model import Rates
from pointsman_edge.sending.first_events import FirstEvents, InPlaceOfAnswer
from pointsman_edge.sending.plain_beginning import begins_plainly
from pointsman_epp_adapter.adapters import usual_messages, wire
from pointsman_epp_adapter.adapters.ext_proc_messages import DecodeError, ProcessingRequest
from pointsman_plugins.scheduling.arrays import Floats, Scores
from pointsman_plugins.scheduling.candidates import Candidates
from pointsman_plugins.scheduling.dice import Dice
from pointsman_plugins.scheduling.few_scores import fewest_first_of_few, weigh_few
from pointsman_plugins.scheduling.points import Scorer
from pointsman_plugins.scheduling.request import ScheduleRequest
from pointsman_plugins.scheduling.run import Run
from pointsman_profile_picker.domain.equality import Equality
from pointsman_profile_picker.domain.expression import ExpressionError, RuleEnvironment, holds
from pointsman_scheduler import candidate_columns
from pointsman_scheduler.domain.outcome import Sight
from pointsman_scheduler.domain.profile import CompiledProfile
from pointsman_scheduler.few_columns import describe_few
from pointsman_scheduler.plugins.detectors import utilization
from pointsman_scheduler.plugins.detectors.few_fullness import fullest_of_few, fullness_of_few
from pointsman_scheduler.plugins.pickers import ranking
from pointsman_scheduler.plugins.scorers import load
from pointsman_testing import builders
from pointsman_testing.scheduler_bench import Bench

ROOT: Final = Path(__file__).resolve().parents[1]
MOST: Final = 10
BENCHMARK: Final = "benchmarks.fast_paths"
Case: TypeAlias = Any
Way: TypeAlias = Callable[[Case], object]


class Unreadable(Exception):
    """The plain way refuses the case, whose result is then used nowhere."""


class Pair(NamedTuple):
    """A fast path, which returns None for what it leaves to the plain way."""

    file: str
    what: str
    fast: Way
    plain: Way
    cases: st.SearchStrategy[Case]
    usual: tuple[Case, ...]
    """Cases that the fast path has to take."""


def members() -> Pair:
    keys = st.sampled_from(["model", "stream", "n", 'a"b', "\\", "é", "\x00"]) | st.text(max_size=4)
    values = st.recursive(
        st.booleans() | st.integers() | st.text(' :{}[],"\\mn', max_size=8) | st.text(max_size=4),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
        max_leaves=8,
    )
    documents = st.dictionaries(keys, values, min_size=1, max_size=6)
    chosen = documents.flatmap(lambda document: st.tuples(st.just(document), st.sampled_from(list(document)) | keys))
    cases = st.builds(
        lambda case, is_ascii, indent: (json.dumps(case[0], ensure_ascii=is_ascii, indent=indent).encode(), case[1]),
        chosen,
        st.booleans(),
        st.none() | st.integers(0, 2),
    )
    return Pair(
        "one_member",
        "an edited member",
        lambda case: edit_one_member(case[0], case[1], b'"llama"'),
        # Two edits are never left to the search for one.
        lambda case: json_members.edit_fields(case[0], {case[1]: b'"llama"', "absent from all": None}),
        cases,
        ((b'{"model":"auto","messages":[{"role":"user","content":"hello"}]}', "model"),),
    )


EVENTS: Final = (
    b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}\n\n',
    b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":null}}]}\n\n',
    b'data: {"choices":[{"index":0,"delta":{"content":"Hi"}}]}\n\n',
    b'data: {"choices": [{"index": 0, "delta": {"content": "\\u00e9"}}]}\n\n',
    b'data: {"choices":[{"index":0,"delta":{"reasoning_content":"Hm"}}]}\n\n',
    b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n',
    b'data: {"choices":[{"index":0,"text":""}]}\n\n',
    b'data: {"choices":[{"index":0,"text":"Hi"}]}\n\n',
    b'data: {"choices":[],"prompt_filter_results":[{"content_filter_results":{}}]}\n\n',
    b'data: {"choices":[],"usage":{"prompt_tokens":3}}\n\n',
    b'data: {"error":{"message":"busy","code":503}}\n\n',
    b'data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"c","function":{"name":"f"}}]}}]}\n\n',
    b'event: message_start\ndata: {"type":"message_start","message":{"content":[]}}\n\n',
    b'event: content_block_delta\ndata: {"type":"content_block_delta","delta":{"type":"text_delta","text":"Hi"}}\n\n',
    b": ping\n\n",
    b"data: [DONE]\n\n",
)


def beginnings() -> Pair:
    def read_each(data: bytes) -> bool | str:
        first = FirstEvents()
        # Behind a comment, each event is read.
        assert not first.feed(b": begun\n\n", last=False)
        try:
            return first.feed(data, last=True)
        except InPlaceOfAnswer as failed:
            return str(failed)

    return Pair(
        "plain_beginning",
        "the first events of a stream",
        lambda data: begins_plainly(data) or None,
        read_each,
        st.lists(st.sampled_from(EVENTS), min_size=1, max_size=5).map(b"".join),
        (EVENTS[2], EVENTS[7]),
    )


def envoys_messages() -> Pair:
    def message(kind: str, headers: list[tuple[str, bytes]], body: bytes, *, end: bool) -> bytes:
        made: Any = ProcessingRequest()  # without type information
        part = getattr(made, kind)
        part.end_of_stream = end
        if kind.endswith("body"):
            part.body = body
        else:
            for name, value in headers:
                header = part.headers.headers.add()
                header.key, header.raw_value = name, value
            fields = made.attributes["envoy.filters.http.ext_proc"].fields
            fields["source.address" if kind == "request_headers" else "upstream.address"].string_value = "[::1]:4711"
            made.protocol_config.request_body_mode, made.protocol_config.response_body_mode = 2, 1
        made.metadata_context.SetInParent()
        return bytes(made.SerializeToString())

    def damage(data: bytes, changes: list[tuple[int, int]], cut: int | None) -> bytes:
        damaged = bytearray(data)
        for at, byte in changes:
            damaged[at % len(damaged)] = byte
        return bytes(damaged if cut is None else damaged[: cut % len(damaged)])

    def read_any(data: bytes) -> object:
        try:
            return wire.decode_any(data)
        except (DecodeError, ValueError) as error:
            raise Unreadable from error

    names = st.sampled_from([":method", "X-Mixed", "x-long", "n" * 127, "n" * 128])
    sizes = st.sampled_from([0, 1, 99, 127, 128, 300, 16_383, 16_384])
    whole = st.builds(
        message,
        st.sampled_from(["request_headers", "response_headers", "request_body", "response_body"]),
        st.lists(st.tuples(names, sizes.map(lambda size: b"\xffv" * size)), max_size=4),
        sizes.map(lambda size: b"b" * size),
        end=st.booleans(),
    )
    changes = st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=3)
    return Pair(
        "usual_messages",
        "a message of Envoy, whole or damaged",
        usual_messages.read,
        read_any,
        st.builds(damage, whole, changes, st.none() | st.none() | st.integers(0, 400)),
        tuple(
            message(kind, [(":method", b"POST"), ("x-empty", b""), ("x-long", size * b"v")], size * b"b", end=end)
            for kind in ("request_headers", "response_headers", "request_body", "response_body")
            for size in (0, 127, 128, 16_384)
            for end in (False, True)
        ),
    )


def conditions() -> Pair:
    environment = RuleEnvironment(())
    # No request has a NUL in a text: CEL would end the text there.
    texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=4) | st.sampled_from(
        ["m", '"', "'"]
    )
    form = st.sampled_from(['model=="{}"', "path == '{}'", ' api ==  "{}" ']) | st.builds(
        "{}{}{}{{}}{}".format,
        st.sampled_from(["model", "session", "stream"]),
        st.sampled_from(["==", "!="]),
        st.sampled_from(['"', "'", 'r"', '"""']),
        st.sampled_from(['"', "'", '"""', '" || stream']),
    )
    written = st.builds(str.format, form, texts | st.sampled_from(["\0", "\\n"]))

    def compare(case: tuple[str, str]) -> bool | None:
        equality = Equality.from_condition(case[0])
        return None if equality is None else equality.read(journey(case[1])) == equality.text

    def in_cel(case: tuple[str, str]) -> bool:
        try:
            compiled = environment.compile_condition(case[0])
        except ExpressionError as error:
            raise Unreadable from error
        return holds(compiled, environment.make_activation(journey(case[1]), dict[str, dict[str, float]]))

    def journey(text: str) -> Any:
        facts = RequestFacts(api=text, path=text)
        return builders.journey("profile-picker", model=text, target=None, request=facts)

    return Pair(
        "equality",
        "a rule about one text",
        compare,
        in_cel,
        st.tuples(written, texts),
        ((' model ==  "m" ', "m"), ("path=='a'", "b")),
    )


def engine_delays() -> Pair:
    tokens, times = st.integers(0, 40_000).map(float), st.floats(0.0, 5000.0)
    engines = st.builds(
        EngineFigures,
        free_at=times, idle=st.sampled_from([0.0, 1.0]), waiting=tokens, whole=st.integers(0, 4).map(float),
        last=tokens, shared=st.integers(0, 5).map(float), decoding=st.integers(0, 200).map(float), context=times,
        carried=tokens, queued=st.integers(0, 50).map(float), speed=st.floats(0.25, 8.0),
        capacity=tokens | st.just(BOUNDLESS),
    )  # fmt: skip

    def terms(case: Case) -> Any:
        _, prompt, _, now, rates = case
        return ask(
            now=now, prompt=float(prompt), output=200.0, others=150.0, budget=8192.0, first_token=16.0, ahead=2.5,
            spared=30.0, rates=rates,
        )  # fmt: skip

    def in_columns(case: Case) -> object:
        chosen, prompt, worth, _, rates = case
        standings = np.array([stand(figures, 8192.0, rates) for figures, _ in chosen])
        hit = np.array([float(tokens) for _, tokens in chosen])
        credit = worth * (hit.max() - hit) / (prompt - hit)
        return delay(EngineDelay(*standings.T), prompt - hit, hit, credit, terms(case)).tolist()

    def in_numbers(case: Case) -> object:
        chosen, prompt, worth, _, rates = case
        standings = [stand(figures, 8192.0, rates) for figures, _ in chosen]
        return delays(standings, [float(tokens) for _, tokens in chosen], prompt, worth, terms(case))

    rates = st.builds(Rates, *[st.floats(0.0, 50.0)] * len(Rates._fields))
    idle = EngineFigures(0.0, 1.0, 900.0, 0.0, 900.0, 1.0, 4.0, 2000.0, 3000.0, 1.0, 1.0, BOUNDLESS)
    return Pair(
        "few_delays",
        "the delays of engines",
        in_numbers,
        in_columns,
        st.tuples(
            st.lists(st.tuples(engines, st.integers(0, 4095)), min_size=1, max_size=8), st.integers(4096, 100_000),
            st.just(0.0) | st.floats(0.0, 0.99), times, rates,
        ),
        (([(idle, 64), (idle, 0)], 5000, 0.5, 7.0, Rates(3.0, 0.01, 1e-7, 0.0, 5.0, 0.05, 1e-5)),),
    )  # fmt: skip


def fullness() -> Pair:
    params = utilization.UtilizationDetectorParams()

    def columns(case: Case) -> tuple[tuple[Floats, ...], Any, tuple[Any, ...]]:
        *figures, counted, role = zip(*case, strict=True)
        roles = np.array(role)
        return (
            tuple(np.array(each, dtype=np.float64) for each in figures),
            np.array(counted, dtype=bool),
            (roles != "decode", roles != "prefill"),
        )

    def in_numbers(case: Case) -> object:
        figures, counted, stages = columns(case)
        values = fullness_of_few([column.tolist() for column in figures], params)
        known = [value if counts else None for value, counts in zip(values, counted.tolist(), strict=True)]
        return pytest.approx(fullest_of_few(known, stages), rel=1e-12)

    def in_columns(case: Case) -> object:
        figures, counted, stages = columns(case)
        return utilization.fullest(utilization._fullness(figures, params), counted, stages)  # pyright: ignore[reportArgumentType]

    worker = st.tuples(
        st.integers(0, 40), st.integers(0, 20_000), st.integers(0, 5), st.integers(0, 80), st.floats(0.0, 1.0),
        st.booleans(), st.sampled_from(["prefill", "decode", "both"]),
    )  # fmt: skip
    return Pair(
        "few_fullness",
        "how full engines are",
        in_numbers,
        in_columns,
        st.lists(worker, min_size=1, max_size=12),
        ([(3, 900, 0, 5, 0.4, True, "both"), (0, 0, 0, 0, 0.1, True, "both")],),
    )


FIGURES: Final = st.lists(st.sampled_from([0.0, 0.25, 1.0, 7.0]) | st.floats(0.0, 1e6), min_size=1, max_size=12)


def one_figure() -> Pair:
    def in_arrays(figures: list[float]) -> object:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(load, "FEW", 0)
            return list(load.fewest_first(np.array(figures)))

    usual = ([3.0, 0.0, 1.0],)
    return Pair("few_scores", "scores by one figure", fewest_first_of_few, in_arrays, FIGURES, usual)


def ranks() -> Pair:
    def in_arrays(case: Case) -> object:
        totals, seed = case
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ranking, "FEW", 0)
            return [totals[index] for index in ranking.best(np.array(totals), 4, Dice(seed))]

    def in_lists(case: Case) -> object:
        totals, seed = case
        return [totals[index] for index in ranking.best(totals, 4, Dice(seed))]

    return Pair(
        "few_scores",
        "the best totals",
        in_lists,
        in_arrays,
        st.tuples(FIGURES, st.integers(0, 9)),
        (([1.0, 2.0, 1.0], 1),),
    )


class Given(Scorer):
    """Scores that a case says, in a list or in an array."""

    type_name = "given"
    column: Scores

    def score(self, request: ScheduleRequest, candidates: Candidates) -> Scores:
        return self.column


def weighed() -> Pair:
    bench = Bench()
    bench.join("w0", "w1", "w2")
    request, candidates = bench.request(), bench.decide().selection.primary.candidates

    def profile(case: Case) -> CompiledProfile:
        scorers: list[tuple[Scorer, float]] = []
        for number, (column, as_list, weight) in enumerate(case):
            scorer = Given(f"given-{number}", Given.params_type())
            scorer.column = list(column) if as_list else np.array(column)
            scorers.append((scorer, weight))
        return CompiledProfile("default", [], scorers, ranking.MaxScore("best", ranking.PickerParams()))

    scores = st.floats(0.0, 1.0) | st.sampled_from([-1.0, 2.0, float("nan")])
    return Pair(
        "few_scores",
        "weighted sums",
        lambda case: weigh_few(profile(case)._weighed, request, candidates),
        lambda case: [each.tolist() for each in profile(case)._weigh_many(request, candidates)[0]],
        st.lists(
            st.tuples(st.tuples(scores, scores, scores), st.booleans(), st.floats(0.0, 5.0)), min_size=1, max_size=3
        ),
        ([((0.5, 1.0, 0.0), True, 2.0), ((0.1, 0.2, 0.3), False, 1.0)],),
    )


def columns() -> Pair:
    bench = Bench({"filters": ["healthy", {"use": "role", "role": "decode"}], "scorers": ["queue", "kv-utilization"]})
    bench.join("a", "b", "c")
    bench.join("p", role="prefill")
    bench.join("o", engine="opaque")
    bench.register("silent")

    def decide(loads: list[tuple[int, int, float, float]]) -> tuple[Run, Sight]:
        for name, (running, waiting, kv_usage, pause) in zip("abcp", loads, strict=True):
            bench.now += pause
            bench.hear(name, running=running, waiting=waiting, kv_usage=kv_usage)
        outcome = bench.decide(bench.prompt(family=loads[0][0] % 3, blocks=10))
        return outcome.selection.primary, outcome.sight

    def in_lists(case: tuple[Run, Sight]) -> object:
        run, sight = case
        filtered = candidate_columns._filtered(run, sight, None)
        return describe_few(run, sight, filtered, candidate_columns._opaque(sight, None))

    engine = st.tuples(st.integers(0, 9), st.integers(0, 9), st.floats(0.0, 1.0), st.floats(0.0, 0.2))
    return Pair(
        "few_columns",
        "the candidates of a decision",
        in_lists,
        lambda case: candidate_columns._many(case[0], case[1], 256),
        st.lists(engine, min_size=4, max_size=4).map(decide),
        (decide([(1, 0, 0.3, 0.1)] * 4),),
    )


PAIRS: Final = tuple(
    make()
    for make in (
        members, beginnings, envoys_messages, conditions, engine_delays, fullness, one_figure, ranks, weighed,
        columns,
    )
)  # fmt: skip
NAMED: Final = [f"{pair.file}: {pair.what}" for pair in PAIRS]


@pytest.mark.parametrize("pair", PAIRS, ids=NAMED)
@given(data=st.data())
def test_a_fast_path_gives_the_plain_result_or_leaves_the_case_to_the_plain_way(
    pair: Pair, data: st.DataObject
) -> None:
    case = data.draw(pair.cases)
    found = pair.fast(case)
    if found is None:
        return
    try:
        expected = pair.plain(case)
    except Unreadable:
        return
    assert found == expected


@pytest.mark.parametrize("pair", PAIRS, ids=NAMED)
def test_a_fast_path_takes_the_usual_cases(pair: Pair) -> None:
    for case in pair.usual:
        found = pair.fast(case)
        assert found is not None
        assert found == pair.plain(case)


def test_each_fast_path_is_timed_and_tested_and_there_are_at_most_ten() -> None:
    files = {
        path.stem
        for home in ("contracts", "shared", "services", "tools")
        for path in (ROOT / home).glob("**/pointsman_*/**/*.py")
        if BENCHMARK in path.read_text(encoding="utf-8")
    }
    timed = set(
        re.findall(r'Pair\(\s*"(\w+)"', (ROOT / "benchmarks/fast_paths/__main__.py").read_text(encoding="utf-8"))
    )
    assert files == timed == {pair.file for pair in PAIRS}
    assert len(files) <= MOST
