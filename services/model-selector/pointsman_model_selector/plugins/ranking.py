"""How models are ranked: scorers give each a number in [0,1], 1 is best, and a picker orders them by their weighted
totals."""

import hashlib
import math
from collections.abc import Sequence
from random import Random
from typing import Literal

from pydantic import Field

from pointsman_model_selector.domain.expected_answer import expected_output
from pointsman_plugins.plugin import Params
from pointsman_plugins.selecting import Candidate, ModelPicker, ModelQuestion, ModelScorer


class CostParams(Params):
    """The scale of costs."""

    worst: float | None = Field(default=None, gt=0)
    """Dollars per request that score 0, with a straight line up to 1 for free. Default: each model is measured by the
    cheapest, `cheapest / price`."""


class ModelCost(ModelScorer[CostParams]):
    """`cost`: prompt tokens and expected output tokens at the model's prices."""

    type_name = "cost"

    def scores(self, question: ModelQuestion, candidates: Sequence[Candidate]) -> list[float]:
        prompt, answers = question.journey.request.prompt_tokens, question.journey.request.answers
        outputs = expected_output(question, candidates)
        prices = [
            (prompt * candidate.input_cost + answers * output * candidate.output_cost) / 1e6
            for candidate, output in zip(candidates, outputs, strict=True)
        ]
        if self.params.worst is not None:
            return [1.0 - price / self.params.worst for price in prices]
        return _against_the_lowest(prices)


class ModelLatencyParams(Params):
    """Which time counts."""

    of: Literal["first-token", "answer"] = "answer"
    unknown: float = Field(default=0.5, ge=0, le=1)
    """Score of a model without measurements."""


class ModelLatency(ModelScorer[ModelLatencyParams]):
    """`latency`: time to the first token, or to the end of an answer of the expected length, as completions taught."""

    type_name = "latency"

    def scores(self, question: ModelQuestion, candidates: Sequence[Candidate]) -> list[float]:
        outputs = expected_output(question, candidates)
        times = [
            self._expected_ms(question, candidate, output)
            for candidate, output in zip(candidates, outputs, strict=True)
        ]
        known = [time for time in times if time is not None]
        if not known:
            return [self.params.unknown] * len(candidates)
        fastest = min(known)
        return [self.params.unknown if t is None else (fastest / t if t > 0 else 1.0) for t in times]

    def _expected_ms(self, question: ModelQuestion, candidate: Candidate, output: float) -> float | None:
        statistics = question.standing.statistics(candidate.name)
        if statistics is None or statistics.ttft_ms is None:
            return None
        if self.params.of == "first-token":
            return statistics.ttft_ms
        return statistics.ttft_ms + (statistics.itl_ms or 0.0) * output


class Quality(ModelScorer):
    """`quality`: the model's configured quality."""

    type_name = "quality"

    def scores(self, question: ModelQuestion, candidates: Sequence[Candidate]) -> list[float]:
        del question
        return [candidate.quality for candidate in candidates]


class Saturation(ModelScorer):
    """`saturation`: how much room the pool has; for a provider, how much quota is left. Unknown counts as free."""

    type_name = "saturation"
    reads_pools = True

    def scores(self, question: ModelQuestion, candidates: Sequence[Candidate]) -> list[float]:
        return [1.0 - self._fullness(question, candidate) for candidate in candidates]

    def _fullness(self, question: ModelQuestion, candidate: Candidate) -> float:
        pool = candidate.target.pool
        if pool is not None:
            state = question.standing.pool(pool)
            return 0.0 if state is None else state.saturation
        statistics = question.standing.statistics(candidate.name)
        return 0.0 if statistics is None or statistics.remaining is None else 1.0 - statistics.remaining


class ActiveRequests(ModelScorer):
    """`active-requests`: how few requests a model has under way, `(fewest + 1) / (requests + 1)`. Each replica counts
    those that it chose the model for, so that providers, which report no load, are counted, too."""

    type_name = "active-requests"
    reads_open_requests = True

    def scores(self, question: ModelQuestion, candidates: Sequence[Candidate]) -> list[float]:
        open_requests = question.standing.open
        counts = [open_requests.of(candidate.name) + 1 for candidate in candidates]
        fewest = min(counts)
        return [fewest / count for count in counts]


class SessionAffinity(ModelScorer):
    """`session-affinity`: 1 for the model that belongs to the session, 0 for the others; 0 for all without a session.

    The model is the one with the highest hash of session and name (rendezvous hashing): every replica agrees without
    a table, and a model that comes or goes moves only its own sessions.
    """

    type_name = "session-affinity"

    def scores(self, question: ModelQuestion, candidates: Sequence[Candidate]) -> list[float]:
        session = question.journey.request.session
        if session is None:
            return [0.0] * len(candidates)
        weights = [_rendezvous(session, candidate.name) for candidate in candidates]
        highest = max(weights)
        return [1.0 if weight == highest else 0.0 for weight in weights]


class MaxScoreModel(ModelPicker):
    """`max-score`: the highest total; ties are dealt by chance."""

    type_name = "max-score"

    def order(self, totals: Sequence[float], random: Random) -> list[int]:
        if len(set(totals)) == len(totals):
            return sorted(range(len(totals)), key=totals.__getitem__, reverse=True)
        draws = [(-total, random.random(), position) for position, total in enumerate(totals)]
        return [position for _, _, position in sorted(draws)]


class WeightedRandomModel(ModelPicker):
    """`weighted-random`: by chance in proportion to the total.

    Efraimidis and Spirakis, "Weighted random sampling with a reservoir" (2006), algorithm A-Res: the largest
    u^(1/w) first, by its logarithm, which small weights don't make 0. Models with a total of 0 come last, among
    themselves by chance.
    """

    type_name = "weighted-random"

    def order(self, totals: Sequence[float], random: Random) -> list[int]:
        # Of the largest: a weight may be so small that the quotient is infinite, which then is the truth.
        largest = max(totals)
        # `random()` may be 0 and is never 1.
        draws = [math.log(1 - random.random()) for _ in totals]

        def key(position: int) -> tuple[bool, float]:
            weight = totals[position] / largest if largest > 0 else 0.0
            return weight <= 0, -draws[position] / weight if weight > 0 else draws[position]

        return sorted(range(len(totals)), key=key)


class UniformRandom(ModelPicker):
    """`random`: by chance, whatever the totals."""

    type_name = "random"

    def order(self, totals: Sequence[float], random: Random) -> list[int]:
        positions = list(range(len(totals)))
        random.shuffle(positions)
        return positions


def _rendezvous(session: str, model: str) -> bytes:
    return hashlib.blake2b(f"{model}\0{session}".encode("utf-8", "surrogatepass"), digest_size=8).digest()


def _against_the_lowest(prices: Sequence[float]) -> list[float]:
    lowest = min(prices)
    return [lowest / price if price > 0 else 1.0 for price in prices]
