"""The smallest change by which another candidate wins, and that it then does."""

import pytest

from pointsman_cli.explain.hindsight import ways
from pointsman_cli.explain.margins import margins
from pointsman_contracts.message import read_fields
from pointsman_contracts.regret import JudgedCandidate, JudgedChoice, JudgedRequest, RequestsJudged
from pointsman_contracts.scheduling import CandidateColumns, ProfileRun
from pointsman_delay.formula import BOUNDLESS, EngineFigures
from pointsman_delay.hindsight import EngineThen, Scale, costs_us
from pointsman_delay.pass_model import Rates

WORKERS = ("a", "b", "c")


def run(weights: dict[str, float], scores: dict[str, tuple[float | None, ...]], **columns: object) -> ProfileRun:
    fields: dict[str, object] = {
        "workers": WORKERS, "ages_ms": (10.0, 240.0, 10.0), "running": (0, 0, 0), "waiting": (0, 0, 0),
        "kv_usage": (0.0, 0.0, 0.0), "matched_tokens": (0, 0, 0), "scores": scores,
        "totals": tuple(
            None if any(column[row] is None for column in scores.values())
            else sum(weights[name] * (column[row] or 0.0) for name, column in scores.items())
            for row in range(3)
        ),
    }  # fmt: skip
    candidates = read_fields(CandidateColumns, fields | columns)
    totals = [-1.0 if total is None else total for total in candidates.totals]
    order = sorted(range(3), key=lambda row: -totals[row])
    return ProfileRun(
        profile="default", chosen=tuple(WORKERS[row] for row in order), weights=weights, candidates=candidates
    )


def queue(waiting: tuple[int, int, int]) -> tuple[float, ...]:
    return tuple((max(waiting) - each) / (max(waiting) - min(waiting)) for each in waiting)


def test_a_queue_is_shorter_by_just_as_many_requests_as_it_takes() -> None:
    waiting = (2, 8, 12)
    weights = {"queue": 2.0, "sticky": 1.0}
    scores: dict[str, tuple[float | None, ...]] = {"queue": queue(waiting), "sticky": (0.3, 0.4, 0.0)}
    found = next(line for line in margins(run(weights, scores, waiting=waiting)) if line.startswith("b "))
    assert "it would win if its queue were 6 shorter" in found
    assert "its load report was 240 ms old" in found
    for fewer, wins in ((5, False), (6, True)):
        changed = (waiting[0], waiting[1] - fewer, waiting[2])
        scores["queue"] = queue(changed)
        assert (run(weights, scores, waiting=changed).chosen[0] == "b") is wins


def test_more_of_the_prompt_or_a_free_cache_has_its_own_units() -> None:
    weights = {"prefix-cache": 3.0, "kv-utilization": 2.0}
    scores: dict[str, tuple[float | None, ...]] = {"prefix-cache": (0.5, 0.25, 0.0), "kv-utilization": (0.6, 0.5, 0.1)}
    lines = margins(run(weights, scores, matched_tokens=(512, 256, 0), kv_usage=(0.4, 0.5, 0.9)))
    assert "it held 324 more of the prompt's tokens" in lines[0]
    assert "its KV cache were 2% used, not 50%" in lines[0]


def test_a_score_without_a_known_signal_is_shown_as_a_score() -> None:
    scores: dict[str, tuple[float | None, ...]] = {"least-delay": (1.0, 0.4, 0.0)}
    lines = margins(run({"least-delay": 12.0}, scores))
    assert "b is 7.20 behind; it would win if its score of least-delay were 1.00, not 0.40" in lines[0]


def test_an_equal_that_lost_by_chance_has_no_margin() -> None:
    """The list of candidates says so already, and any change would have let it win."""
    scores: dict[str, tuple[float | None, ...]] = {"least-delay": (1.0, 1.0, 0.4), "queue": (1.0, 1.0, 1.0)}
    [only] = margins(run({"least-delay": 12.0, "queue": 1.0}, scores))
    assert only.startswith("c is 7.20 behind; it would win if its score of least-delay were 1.00, not 0.40;")


def test_scores_of_empty_caches_are_not_taken_for_their_free_part() -> None:
    scores: dict[str, tuple[float | None, ...]] = {"least-delay": (1.0, 0.4, None), "lora-affinity": (0.5, 0.5, None)}
    usage = (0.5, 0.5, 0.0)
    [only] = margins(run({"least-delay": 1.0, "lora-affinity": 3.0}, scores, kv_usage=usage))
    assert "its score of lora-affinity were 0.70, not 0.50" in only
    assert "KV cache" not in only


def test_a_margin_that_no_single_score_closes_is_said_to_be_so() -> None:
    scores: dict[str, tuple[float | None, ...]] = {"x": (1.0, 0.0, 0.0), "y": (1.0, 0.0, None)}
    [only] = margins(run({"x": 1.0, "y": 1.0}, scores))
    assert only.startswith("b is 2.00 behind: no single score could have made it win")


RATES = Rates(15.0, 0.02, 1e-7, 1e-9, 8.0, 0.1, 4e-5)
SCALE = Scale(RATES, 200.0, 8192.0, 16.0)
IDLE = EngineFigures(0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, BOUNDLESS)


def judged(worker: str, uncached: int, came: int, figures: EngineFigures) -> JudgedCandidate:
    [cost] = costs_us([EngineThen(worker, uncached, came, figures)], 1000.0, 2000, 100, SCALE)
    return JudgedCandidate(
        worker=worker, cost_us=cost, uncached_tokens=uncached, came=came, figures=tuple(figures)
    )  # fmt: skip


def event(*candidates: JudgedCandidate) -> RequestsJudged:
    request = JudgedRequest(
        request_id="r", edge="e", at_ms=1000, prompt_tokens=2000, output_tokens=100, candidates=candidates,
        choices=(JudgedChoice(profile="default", worker=candidates[0].worker, cost_us=1, regret_us=0),),
    )  # fmt: skip
    return RequestsJudged(
        source="s", sequence=1, at_ms=2000, judge="j", pool="p", rates=RATES, others=200.0, batch_tokens=8192.0,
        first_token_weight=16.0, requests=(request,),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("figures", "uncached", "came", "said"),
    [
        (IDLE._replace(waiting=3000.0, last=3000.0), 1000, 0, "prompt tokens waited"),
        (IDLE, 2000, 0, "it held"),
        (IDLE, 1000, 9, "of the requests that came later"),
        (IDLE._replace(free_at=1300.0, idle=0.0), 1000, 0, "its pass in flight had ended"),
    ],
)
def test_the_shown_change_makes_the_other_engine_as_cheap_and_one_less_does_not(
    figures: EngineFigures, uncached: int, came: int, said: str
) -> None:
    cheap, dear = judged("a", 1000, 0, IDLE), judged("b", uncached, came, figures)
    told = event(cheap, dear)
    [line] = ways(told, told.requests[0])
    assert line.startswith("b would have cost")
    part = next((way for way in line.split(", or if ") if said in way), "")
    assert part, line
    number = next(int(word.replace(",", "")) for word in part.split()[::-1] if word.replace(",", "").isdigit())

    def cost(fewer: int) -> int:
        at = figures
        left, arrivals, free = uncached, came, at.free_at
        if said == "it held":
            left -= fewer
        elif said.startswith("of the requests"):
            arrivals -= fewer
        elif said.startswith("its pass"):
            free -= fewer
        else:
            at = at._replace(waiting=at.waiting - fewer, last=at.last - fewer)
        return judged("b", left, arrivals, at._replace(free_at=free)).cost_us

    assert cost(number) <= cheap.cost_us < cost(number - 1)
