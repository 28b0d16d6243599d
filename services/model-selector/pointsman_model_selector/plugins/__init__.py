"""Plugins of the model-selector."""

from typing import Final

from pointsman_model_selector.domain.selector import Builtin
from pointsman_model_selector.plugins.choosers import ByHeader, Single
from pointsman_model_selector.plugins.filters import Allowed, Capable, Group, Healthy, RateLimited
from pointsman_model_selector.plugins.pickers import MaxScore, UniformRandom, WeightedRandom
from pointsman_model_selector.plugins.scorers import Cost, Latency, Quality, Saturation, SessionAffinity
from pointsman_model_selector.plugins.semantic_match import SemanticMatch

BUILTIN: Final = Builtin(
    filters=(Capable, Healthy, Allowed, RateLimited, Group),
    scorers=(Cost, Latency, Quality, Saturation, SessionAffinity, SemanticMatch),
    pickers=(MaxScore, WeightedRandom, UniformRandom),
    choosers=(Single, ByHeader),
)
