"""A selector: one way to choose a model, compiled from the configuration."""

import math
import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Final, NamedTuple

from pointsman_contracts.journey import CascadeStep
from pointsman_contracts.model_choice import ModelChoice, ModelPoint
from pointsman_contracts.timing import TIMES
from pointsman_core.config import Config, Embeddings, Ranking, Selector
from pointsman_core.joint_choice import measured, rank_models
from pointsman_core.permission import allowed_models, may_use, not_allowed
from pointsman_core.plugins import Gathering, PluginError, unknown, within
from pointsman_core.prices import prices
from pointsman_core.refusal import Refusal
from pointsman_model_selector.domain.candidate import candidates_of
from pointsman_model_selector.domain.cascading import CompiledCascade
from pointsman_model_selector.domain.open_choice import open_choice
from pointsman_plugins.profile_chains import ProfileChains, build_chains
from pointsman_plugins.registry import Registry
from pointsman_plugins.selecting import (
    Candidate,
    ModelFilter,
    ModelPicker,
    ModelQuestion,
    ModelScorer,
    RankingChooser,
    StatePlugin,
)

_NOT_ALLOWED: Final = "allowed: not allowed for this identity"

Timing = Callable[[str, str], Callable[[], None]]
"""Begins to time a plugin, given its kind and name; the result ends it."""


class SelectorRegistries(NamedTuple):
    """The plugin types of every extension point."""

    filters: Registry[ModelFilter]
    scorers: Registry[ModelScorer]
    pickers: Registry[ModelPicker]
    choosers: Registry[RankingChooser]


class Builtin(NamedTuple):
    """The plugin types of this project."""

    filters: tuple[type[ModelFilter], ...]
    scorers: tuple[type[ModelScorer], ...]
    pickers: tuple[type[ModelPicker], ...]
    choosers: tuple[type[RankingChooser], ...]


def registries(builtin: Builtin) -> SelectorRegistries:
    """All plugin types: the built-in ones and those of other distributions."""
    return SelectorRegistries(
        Registry(ModelFilter, builtin.filters),
        Registry(ModelScorer, builtin.scorers),
        Registry(ModelPicker, builtin.pickers),
        Registry(RankingChooser, builtin.choosers),
    )


class Selected(NamedTuple):
    """The outcome of one selection."""

    model: Candidate
    fallbacks: tuple[Candidate, ...]
    ranking: str
    total: float
    out: dict[str, str]
    """Model → `<filter>: <why>` of those that a filter took out."""
    old_pools: tuple[str, ...]
    """Pools whose state was old when the choice depended on it."""
    remarks: tuple[str, ...] = ()
    """`<scorer>: <remark>`."""
    choice: ModelChoice | None = None
    """Set where the scheduler chooses: `model` is the one whose pool is asked first."""
    models: tuple[ModelPoint, ...] = ()
    """The outcome of a joint choice among models of providers, which needs no scheduler."""
    step: CascadeStep | None = None
    """Set where `fallbacks` are asked only if the model's answer isn't confident, or if it fails."""

    @property
    def note(self) -> str:
        """The choice in one line."""
        choice = f"{self.ranking}: {self.model.name} ({self.total:.2f})"
        if self.choice is not None:
            choice = f"{self.ranking}: open, {', '.join(option.name for option in self.choice.options)}"
        elif self.step is not None:
            choice = f"{self.ranking}: {self.step.model} first, then {', '.join(self.step.rest)}"
        if not self.remarks and not self.out:
            return choice
        return "; ".join((choice, *self.remarks, *[f"{name} out ({why})" for name, why in self.out.items()]))


class _Ranking:
    """Filters, weighted scorers and a picker."""

    def __init__(
        self, name: str, ranking: Ranking, candidates: Sequence[Candidate], plugins: SelectorRegistries
    ) -> None:
        self.name: Final = name
        with within("filters"):
            filters = plugins.filters.build([use.spec for use in ranking.filters])
            self.filters: Final = [each for each in filters if not each.called_by_another]
        with within("scorers"):
            scorers = plugins.scorers.build([use.spec for use in ranking.scorers])
            for position, scorer in enumerate(scorers):
                with within(position):
                    scorer.bind(candidates)
        weighed = zip(scorers, (use.weight for use in ranking.scorers), strict=True)
        self.scorers: Final = [(each, weight) for each, weight in weighed if not each.called_by_another]
        self.comparing: Final = [each for each in scorers if each.embeddings is not None]
        """Scorers that compare vectors."""
        self.remarking: Final = [each for each in scorers if type(each).remark is not ModelScorer.remark]
        with within("picker"):
            self.picker: Final = plugins.pickers.one(ranking.picker.spec)
        self.joint: Final = ranking.joint
        stateful: list[StatePlugin] = [*filters, *scorers]
        self.reads_pools: Final = any(plugin.reads_pools for plugin in stateful)
        self.reads_open_requests: Final = any(plugin.reads_open_requests for plugin in stateful)


class _SeededLate(Random):
    """`Random(pending)`, seeded at its first number: seeding takes longer than all else in a selection, and most need
    no chance."""

    pending: int | None = None

    def random(self) -> float:
        if self.pending is not None:
            self._begin(self.pending)
        return super().random()

    def getrandbits(self, k: int, /) -> int:
        if self.pending is not None:
            self._begin(self.pending)
        return super().getrandbits(k)

    def _begin(self, seed: int) -> None:
        self.pending = None
        self.seed(seed)


class CompiledSelector:
    """A named selector instance; nothing is shared with the others (S0-47)."""

    def __init__(self, name: str, settings: Selector, config: Config, plugins: SelectorRegistries) -> None:
        """Raises PluginError for a plugin that can't be built and a ranking that doesn't exist."""
        self.name: Final = name
        self.candidates: Final = candidates_of(config, settings.models)
        self._fallbacks: Final = settings.fallbacks
        self._cascade: Final = None if settings.cascade is None else CompiledCascade(settings.cascade, config)
        self._prices: Final = prices(config)
        self._random: Final = _SeededLate()
        pools = [each.target.pool for each in self.candidates if each.target.pool is not None]
        self._pools: Final = tuple(dict.fromkeys(pools))
        self._rankings: Final[dict[str, _Ranking]] = {}
        for ranking, how in settings.rankings.items():
            with within("rankings", ranking):
                self._rankings[ranking] = _Ranking(ranking, how, self.candidates, plugins)
        self._first: Final = next(iter(self._rankings.values()))
        self.counts_requests: Final = any(each.reads_open_requests for each in self._rankings.values())
        """Whether its choices are counted as requests under way."""
        self.comparing: Final = tuple([each for one in self._rankings.values() for each in one.comparing])
        """Scorers that compare vectors."""
        self.embeddings: Final = _one_model(self.comparing)
        """The embedding model that a request's prompt is embedded by; None when no scorer compares vectors."""
        with within("choose"):
            self._chooser: Final = plugins.choosers.one(settings.choose.spec)
            for ranking in self._chooser.named():
                if ranking not in self._rankings:
                    raise PluginError(unknown("ranking", ranking, self._rankings))

    def select_model(self, question: ModelQuestion, timing: Timing | None = None) -> Selected:
        """Filter, score, pick. Raises Refusal 503 for an empty catalogue and 429 when all models are filtered out."""
        if not self.candidates:
            raise Refusal(
                503,
                f"The model selector '{self.name}' has no models to choose among; try again shortly.",
                type="server_error",
                code="no_models",
                retry_after_s=5.0,
            )
        named = None if len(self._rankings) == 1 else self._chooser.ranking(question.journey)
        ranking = self._first if named is None else self._rankings[named]
        left, out = self._filter(ranking, question, timing)
        if not left:
            raise self._nothing_left(ranking, question, out)
        if self._cascade is not None:
            return self._next_in_cascade(self._cascade, ranking, question, left, out)
        totals = self._totals(ranking, question, left, timing)
        # Seeded by the request, so that a re-sent journey is decided alike by every replica.
        random = self._random
        random.pending = zlib.crc32(question.journey.request_id.encode("utf-8", "surrogatepass"))
        done = timing("picker", ranking.picker.name) if timing else None
        order = ranking.picker.order(totals, random)
        if done:
            done()
        if ranking.joint is not None and len(left) > 1:
            ordered, scores = [left[position] for position in order], [totals[position] for position in order]
            open_to = open_choice(
                ranking.joint, question, ordered, scores=scores, prices=self._prices, fallbacks=self._fallbacks
            )
            return self._left_open(ranking, question, ordered, open_to, out)
        chosen = order[0]
        return Selected(
            model=left[chosen],
            fallbacks=tuple([left[position] for position in order[1 : 1 + self._fallbacks]]),
            ranking=ranking.name,
            total=totals[chosen],
            out=out,
            old_pools=self._old_pools(question) if ranking.reads_pools else (),
            remarks=self._remarks(ranking, question) if ranking.remarking else (),
        )

    def _next_in_cascade(
        self,
        cascade: CompiledCascade,
        ranking: _Ranking,
        question: ModelQuestion,
        left: list[Candidate],
        out: dict[str, str],
    ) -> Selected:
        """The first model that passed the filters and wasn't asked yet. Raises Refusal 409 when there is none."""
        escalated = question.journey.request.escalated
        if escalated:
            left = [each for each in cascade.left_after(escalated, self.candidates) if each in left]
            if not left:
                raise Refusal(409, "The cascade has no further model.", type="server_error", code="cascade_ended")
        return Selected(
            model=left[0],
            fallbacks=tuple(left[1:]),
            ranking=ranking.name,
            total=0.0,
            out=out,
            old_pools=self._old_pools(question) if ranking.reads_pools else (),
            step=cascade.step_of(left),
        )

    def _left_open(
        self,
        ranking: _Ranking,
        question: ModelQuestion,
        candidates: Sequence[Candidate],
        choice: ModelChoice,
        out: dict[str, str],
    ) -> Selected:
        """The choice for the scheduler. Where only providers serve the candidates it is made here, by measured times.
        Raises Refusal where `rank_models` does."""
        first = next((position for position, each in enumerate(candidates) if each.target.pool is not None), None)
        order, points, given = tuple(range(len(candidates))), (), choice
        if first is None:
            facts = question.journey.request
            times = [measured(option) for option in choice.options]
            order, points = rank_models(choice, facts.prompt_tokens, facts.answers, times)
            first, given = order[0], None
        others = [position for position in order if position != first]
        return Selected(
            model=candidates[first],
            fallbacks=tuple([candidates[position] for position in others[: self._fallbacks]]),
            ranking=ranking.name,
            total=choice.options[first].score,
            out=out,
            old_pools=self._old_pools(question) if ranking.reads_pools else (),
            remarks=self._remarks(ranking, question) if ranking.remarking else (),
            choice=given,
            models=points,
        )

    def _filter(
        self, ranking: _Ranking, question: ModelQuestion, timing: Timing | None
    ) -> tuple[list[Candidate], dict[str, str]]:
        left = list(self.candidates)
        out: dict[str, str] = {}
        attributes = question.journey.request.attributes
        allowed = allowed_models(attributes) if attributes else None
        if allowed is not None:
            left = [candidate for candidate in left if may_use(allowed, candidate.name, candidate.groups)]
            out = {candidate.name: _NOT_ALLOWED for candidate in self.candidates if candidate not in left}
        for plugin in ranking.filters:
            done = timing("filter", plugin.name) if timing else None
            kept: list[Candidate] = []
            told = plugin.objections(question, left) if plugin.sees_all else None
            for position, candidate in enumerate(left):
                objection = plugin.objection(question, candidate) if told is None else told[position]
                if objection is None:
                    kept.append(candidate)
                else:
                    out[candidate.name] = f"{plugin.name}: {objection}"
            left = kept
            if done:
                done()
        return left, out

    def _totals(
        self, ranking: _Ranking, question: ModelQuestion, left: Sequence[Candidate], timing: Timing | None
    ) -> list[float]:
        totals = [0.0] * len(left)
        for scorer, weight in ranking.scorers:
            done = timing("scorer", scorer.name) if timing else None
            scores = scorer.scores(question, left)
            if len(scores) != len(left):
                raise RuntimeError(f"scorer {scorer.name!r} gave {len(scores)} scores for {len(left)} models")
            for position, score in enumerate(scores):
                totals[position] += weight * (score if 0.0 <= score <= 1.0 else clamped(score))
            if done:
                done()
        return totals

    def _nothing_left(self, ranking: _Ranking, question: ModelQuestion, out: Mapping[str, str]) -> Refusal:
        if all(why == _NOT_ALLOWED for why in out.values()):
            return not_allowed(question.journey.model)
        waits = [
            wait
            for plugin in ranking.filters
            for candidate in self.candidates
            if out[candidate.name].startswith(f"{plugin.name}: ")
            and (wait := plugin.retry_after_s(question, candidate)) is not None
        ]
        reasons = Counter(out.values())
        told = "; ".join(f"{why} ({count})" if count > 1 else why for why, count in reasons.most_common(5))
        return Refusal(
            429,
            f"The selector's filters removed every model: {told}.",
            type="rate_limit_error",
            code="no_model_available",
            retry_after_s=min(waits) if waits else None,
        )

    def _remarks(self, ranking: _Ranking, question: ModelQuestion) -> tuple[str, ...]:
        remarks = [(scorer.name, scorer.remark(question)) for scorer in ranking.remarking]
        return tuple([f"{name}: {remark}" for name, remark in remarks if remark is not None])

    def _old_pools(self, question: ModelQuestion) -> tuple[str, ...]:
        oldest = question.now_s - TIMES.snapshot_old_s
        return tuple(
            [
                name
                for name in self._pools
                if (state := question.standing.pool(name)) is None or state.received_s < oldest
            ]
        )


def _one_model(scorers: Sequence[ModelScorer]) -> Embeddings | None:
    models = list(dict.fromkeys(each.embeddings for each in scorers))
    if len(models) > 1:
        raise PluginError("all scorers of a selector need the same `embeddings`: a prompt is embedded once")
    return models[0] if models else None


def clamped(score: float) -> float:
    """A score within [0,1]; one that isn't a number counts as 0 (S0-44)."""
    if math.isnan(score):
        return 0.0
    return min(1.0, max(0.0, score))


class Selectors(dict[str, CompiledSelector]):
    """The selectors of one configuration revision by name."""

    def __init__(self, after_model: ProfileChains | None) -> None:
        """`after_model`: the request processors that run once a selector has chosen."""
        super().__init__()
        self.after_model: Final = after_model


def compile_selectors(config: Config, plugins: SelectorRegistries) -> Selectors:
    """All selectors. Raises PluginError that names every selector that is wrong, and ConfigError for processors."""
    compiled = Selectors(build_chains(config, "after_model"))
    wrong = Gathering()
    for name, settings in config.selectors.items():
        with wrong.collect_errors_below(name):
            compiled[name] = CompiledSelector(name, settings, config, plugins)
    wrong.raise_gathered()
    return compiled
