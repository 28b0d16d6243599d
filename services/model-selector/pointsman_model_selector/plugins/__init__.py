"""Plugins of the model-selector."""

from typing import Final

from pointsman_model_selector.domain.selector import Builtin
from pointsman_model_selector.plugins.choosers import ByHeader, OneRanking
from pointsman_model_selector.plugins.composed import (
    AllOfFilters,
    AnyOfFilters,
    FallbackOfFilters,
    FilterByCondition,
    GreatestOfScorers,
    LeastOfScorers,
    ScoreModelsByCondition,
    TimedFilter,
    TimedScorer,
)
from pointsman_model_selector.plugins.filters import Allowed, Capable, HealthyModels, ModelGroup, RateLimited
from pointsman_model_selector.plugins.ranking import (
    ActiveRequests,
    MaxScoreModel,
    ModelCost,
    ModelLatency,
    Quality,
    Saturation,
    SessionAffinity,
    UniformRandom,
    WeightedRandomModel,
)
from pointsman_model_selector.plugins.semantic_match import SemanticMatch

BUILTIN: Final = Builtin(
    filters=(
        *(Capable, HealthyModels, Allowed, RateLimited, ModelGroup),
        *(AnyOfFilters, AllOfFilters, FallbackOfFilters, FilterByCondition, TimedFilter),
    ),
    scorers=(
        *(ActiveRequests, ModelCost, ModelLatency, Quality, Saturation, SessionAffinity, SemanticMatch),
        *(LeastOfScorers, GreatestOfScorers, ScoreModelsByCondition, TimedScorer),
    ),
    pickers=(MaxScoreModel, WeightedRandomModel, UniformRandom),
    choosers=(OneRanking, ByHeader),
)
