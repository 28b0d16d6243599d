"""The CPU time that each fast path saves, beside the plain way to the same result.

`python -m benchmarks.fast_paths`: each is a file of its own that names this benchmark. Both ways are timed in turn, in
bursts of process CPU time, and the shortest burst of each counts. The share is of a request that costs 280 us
(`python -m benchmarks.trace`). `PassedStream`'s keepers, which keep a stream's events without reading them, are timed
by whole streams (`python -m benchmarks.paired`).
"""

import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import numpy as np
import orjson

from pointsman_core import json_members
from pointsman_core.one_member import edit_one_member
from pointsman_delay.few_delays import delays
from pointsman_delay.formula import BOUNDLESS, EngineFigures, ask, delay, stand
from pointsman_delay.pass_model import Rates
from pointsman_edge.sending.first_events import FirstEvents
from pointsman_edge.sending.plain_beginning import begins_plainly
from pointsman_epp_adapter.adapters import usual_messages, wire
from pointsman_epp_adapter.adapters.ext_proc_messages import ProcessingRequest
from pointsman_plugins.scheduling.arrays import greatest, least
from pointsman_plugins.scheduling.few_scores import fewest_first_of_few, rank_few
from pointsman_profile_picker.domain.equality import Equality
from pointsman_profile_picker.domain.expression import RuleEnvironment, holds
from pointsman_scheduler import candidate_columns
from pointsman_scheduler.few_columns import describe_few
from pointsman_scheduler.plugins.detectors import utilization
from pointsman_scheduler.plugins.detectors.few_fullness import fullest_of_few, fullness_of_few
from pointsman_testing import builders
from pointsman_testing.scheduler_bench import Bench

REQUEST_US: Final = 280.0
WORKERS: Final = 8
BURSTS: Final = 40
CALLS: Final = 500
EVENT: Final = (
    b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1694268190,"model":"llama","choices":'
    b'[{"index":0,"delta":{"role":"assistant","content":"He"},"logprobs":null,"finish_reason":null}]}\n\n'
)
HEADERS: Final = {
    ":method": "POST", ":path": "/v1/chat/completions", ":scheme": "http", ":authority": "127.0.0.1:8080",
    "accept": "application/json", "user-agent": "OpenAI/Python 2.0", "content-type": "application/json",
    "content-length": "1034", "authorization": "Bearer sk-abcdef", "x-stainless-lang": "python",
    "x-stainless-os": "Linux", "x-forwarded-proto": "http", "x-request-id": "0d4b4b0a-4a7c-4c7c-8a7f-3c1f1b1f1f1f",
}  # fmt: skip

Work = Callable[[], object]


class Pair(NamedTuple):
    """A fast path and the plain one."""

    file: str
    what: str
    fast: Work
    plain: Work


def _member() -> Iterator[Pair]:
    words = [{"role": "system", "content": 'You are "x"' * 20}, {"role": "user", "content": "hello " * 150}]
    for place, members in {
        "first": {"model": "auto", "messages": words, "stream": True},
        "behind the messages": {"messages": words, "model": "auto", "stream": True},
    }.items():
        body = orjson.dumps(members)
        yield Pair(
            "one_member",
            f"the model of a body of 1 KB, {place}",
            lambda body=body: edit_one_member(body, "model", b'"llama"'),
            lambda body=body: json_members.edit_fields(body, {"model": b'"llama"', "absent": None}),
        )


def _envoy() -> Iterator[Pair]:
    message: Any = ProcessingRequest()  # without type information
    for name, value in HEADERS.items():
        header = message.request_headers.headers.headers.add()
        header.key, header.raw_value = name, value.encode()
    message.attributes["envoy.filters.http.ext_proc"].fields["source.address"].string_value = "127.0.0.1:4444"
    message.protocol_config.request_body_mode, message.protocol_config.response_body_mode = 4, 2
    data = message.SerializeToString()
    yield Pair(
        "usual_messages", "a head of 13 headers", lambda: usual_messages.read(data), lambda: wire.decode_any(data)
    )


def _rules() -> Iterator[Pair]:
    journey = builders.journey("scheduler")
    environment = RuleEnvironment(())
    condition = 'model == "auto"'
    compiled, equality = environment.compile_condition(condition), Equality.from_condition(condition)
    assert equality is not None
    yield Pair(
        "equality",
        "one rule",
        lambda: equality.read(journey) == equality.text,
        lambda: holds(compiled, environment.make_activation(journey, dict[str, dict[str, float]])),
    )


def _delays(dice: np.random.Generator) -> Iterator[Pair]:
    rates = Rates(3.0, 0.01, 1e-7, 0.0, 5.0, 0.05, 1e-5)
    terms = ask(
        now=100.0, prompt=1000.0, output=200.0, others=200.0, budget=8192.0, first_token=3.0, ahead=0.5, spared=0.1,
        rates=rates,
    )  # fmt: skip
    figures = [
        EngineFigures(
            free_at=0.0, idle=1.0, waiting=float(dice.integers(0, 3000)), whole=0.0, last=float(dice.integers(0, 3000)),
            shared=1.0, decoding=float(dice.integers(0, 40)), context=2000.0, carried=3000.0, queued=1.0, speed=1.0,
            capacity=BOUNDLESS,
        )
        for _ in range(WORKERS)
    ]  # fmt: skip
    few = [stand(each, 8192.0, rates) for each in figures]
    many = np.array(stand(tuple(np.array(figures).T), 8192.0, rates))
    held, hit = [0.0] * WORKERS, np.zeros(WORKERS)
    yield Pair(
        "few_delays",
        f"the delay of {WORKERS} engines",
        lambda: np.array(delays(few, held, 1000, 0.0, terms)),
        lambda: delay(many, 1000 - hit, hit, None, terms),
    )


def _fullness(dice: np.random.Generator) -> Iterator[Pair]:
    params = utilization.UtilizationDetectorParams()
    figures = (*(dice.integers(0, 5, WORKERS).astype(float) for _ in range(4)), dice.random(WORKERS))
    everyone = np.ones(WORKERS, dtype=bool)
    yield Pair(
        "few_fullness",
        f"the fullness of {WORKERS} engines",
        lambda: fullest_of_few(fullness_of_few([column.tolist() for column in figures], params), (everyone,)),
        lambda: utilization.fullest(utilization._fullness(figures, params), everyone, (everyone,)),  # pyright: ignore[reportPrivateUsage, reportArgumentType]
    )


def _scores(dice: np.random.Generator) -> Iterator[Pair]:
    figures = dice.random(WORKERS)

    def spread() -> object:
        scores = greatest(figures) - figures
        scores /= greatest(figures) - least(figures)
        return scores

    def best() -> object:
        near = figures.argpartition(-4)[-4:]
        found = dict(zip(near.tolist(), figures[near].tolist(), strict=True))
        return sorted(found, key=found.__getitem__, reverse=True)

    values: list[float] = figures.tolist()
    yield Pair("few_scores", f"a score of {WORKERS} candidates", lambda: fewest_first_of_few(figures.tolist()), spread)
    yield Pair("few_scores", f"the order of {WORKERS} candidates", lambda: rank_few(values), best)


def _columns() -> Iterator[Pair]:
    bench = Bench()
    bench.join(*[f"worker-{number}" for number in range(WORKERS)])
    outcome = bench.decide(bench.prompt(family=1, blocks=10), seed=1)
    run, sight = outcome.selection.primary, outcome.sight
    yield Pair(
        "few_columns",
        f"the columns of {WORKERS} candidates",
        lambda: describe_few(run, sight, {}, ()),
        lambda: candidate_columns._many(run, sight, 256),  # pyright: ignore[reportPrivateUsage]
    )


def pairs() -> Iterator[Pair]:
    """Every fast path."""
    dice = np.random.default_rng(1)
    yield from _member()
    yield Pair(
        "plain_beginning",
        "the first event of a stream",
        lambda: begins_plainly(EVENT),
        lambda: FirstEvents().feed(b"\n" + EVENT, last=False),
    )
    yield from _envoy()
    yield from _rules()
    yield from _delays(dice)
    yield from _fullness(dice)
    yield from _scores(dice)
    yield from _columns()


def burst_us(work: Work) -> float:
    """Microseconds of one call."""
    began = time.process_time_ns()
    for _ in range(CALLS):
        work()
    return (time.process_time_ns() - began) / CALLS / 1000.0


def main() -> int:
    print("| file | for | fast | plain | saves | of a request |\n|---|---|---:|---:|---:|---:|")
    for file, what, fast, plain in pairs():
        bursts = [(burst_us(fast), burst_us(plain)) for _ in range(BURSTS)]
        quick, slow = map(min, zip(*bursts, strict=True))
        saved = slow - quick
        print(
            f"| {file} | {what} | {quick:.1f} | {slow:.1f} us | {saved:.1f} us | {saved / REQUEST_US:.1%} |", flush=True
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
