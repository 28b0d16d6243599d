"""Filters over models."""

from pydantic import Field

from pointsman_core.permission import allowed_models, may_use
from pointsman_plugins.plugin import Params
from pointsman_plugins.selecting import Candidate, ModelFilter, ModelQuestion


class Capable(ModelFilter):
    """`capable`: keeps models that serve the request's API, have its features, and have a context for its tokens."""

    type_name = "capable"

    def objection(self, question: ModelQuestion, candidate: Candidate) -> str | None:
        request = question.journey.request
        if request.api not in candidate.apis:
            return f"doesn't serve the API {request.api}"
        if not candidate.features.issuperset(request.features):
            lacking = [feature for feature in request.features if feature not in candidate.features]
            return f"lacks {', '.join(lacking)}"
        needed = request.prompt_tokens + (request.max_output_tokens or 0)
        if candidate.context is not None and needed > candidate.context:
            return f"context of {candidate.context} tokens is too short"
        return None


class HealthyParams(Params):
    """When a model counts as broken."""

    max_error_rate: float = Field(default=0.5, gt=0, le=1)
    """Part of the recent requests that may fail."""
    min_requests: int = Field(default=10, ge=1)
    """With fewer recent requests the error rate is ignored."""


class HealthyModels(ModelFilter[HealthyParams]):
    """`healthy`: removes models that no live worker serves, or whose recent requests mostly failed.

    A pool or model without statistics stays in.
    """

    type_name = "healthy"
    reads_pools = True

    def objection(self, question: ModelQuestion, candidate: Candidate) -> str | None:
        target = candidate.target
        if target.pool is not None:
            pool = question.standing.pool(target.pool)
            if pool is not None and target.model not in pool.models:
                return "no live worker serves it"
        statistics = question.standing.statistics(candidate.name)
        if statistics is not None and statistics.requests >= self.params.min_requests:
            rate = statistics.errors / statistics.requests
            if rate > self.params.max_error_rate:
                return f"{rate:.0%} of recent requests failed"
        return None

    def retry_after_s(self, question: ModelQuestion, candidate: Candidate) -> float | None:
        del question, candidate
        return 1.0


class Allowed(ModelFilter):
    """`allowed`: keeps models that the identity may use. Every selector begins with it, listed or not.

    Reads `models` of the attribute `identity`: names, patterns (`llama-*`) or `group:<group>`. An identity without
    `models`, or a request without identity, may use all.
    """

    type_name = "allowed"

    def objection(self, question: ModelQuestion, candidate: Candidate) -> str | None:
        allowed = allowed_models(question.journey.request.attributes)
        return None if may_use(allowed, candidate.name, candidate.groups) else "not allowed for this identity"


class RateLimitedParams(Params):
    """How much quota must be left."""

    min_remaining: float = Field(default=0.0, ge=0, lt=1)
    """Part of the provider's quota that stays unused."""


class RateLimited(ModelFilter[RateLimitedParams]):
    """`rate-limited`: removes models whose provider asked for a pause, or whose quota is used up."""

    type_name = "rate-limited"

    def objection(self, question: ModelQuestion, candidate: Candidate) -> str | None:
        statistics = question.standing.statistics(candidate.name)
        if statistics is None:
            return None
        if statistics.limited_until_ms is not None and statistics.limited_until_ms > question.now_ms:
            return "its provider asked for a pause"
        if statistics.remaining is not None and statistics.remaining <= self.params.min_remaining:
            return "its quota is used up"
        return None

    def retry_after_s(self, question: ModelQuestion, candidate: Candidate) -> float | None:
        statistics = question.standing.statistics(candidate.name)
        until = statistics.limited_until_ms if statistics else None
        return 1.0 if until is None else max(0.1, (until - question.now_ms) / 1000)


class GroupParams(Params):
    """How a request says that it leaves the choice to the gateway."""

    keyword: str = "auto"


class ModelGroup(ModelFilter[GroupParams]):
    """`group`: `auto` keeps all models, `auto/<group>` those of the group, and the name of a model that model."""

    type_name = "group"

    def setup(self) -> None:
        self._prefix = f"{self.params.keyword}/"

    def objection(self, question: ModelQuestion, candidate: Candidate) -> str | None:
        model = question.journey.wanted
        if model == self.params.keyword:
            return None
        if model.startswith(self._prefix):
            group = model[len(self._prefix) :]
            return None if group in candidate.groups else "not of the group asked for"
        return None if model == candidate.name else "not the model asked for"
