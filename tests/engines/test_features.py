"""The engine has what the gateway uses and passes on, as the gateway expects it."""

from typing import Final

import pytest

from pointsman_engines.probes.features import FEATURES, Feature, FeatureResult, Outcome, find
from pointsman_engines.probes.probed_engine import ProbedEngine

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(1200)]

NEEDED: Final = ("models",)
"""Without these the gateway can't serve an engine's requests."""


@pytest.mark.parametrize("feature", FEATURES, ids=lambda feature: feature.key)
async def test_the_engine_has_the_feature_as_the_gateway_expects_it_or_not_at_all(
    engine: ProbedEngine, found: dict[str, FeatureResult], feature: Feature
) -> None:
    finding = found[feature.key] = await find(engine, feature)
    assert finding.outcome is not Outcome.DIFFERENT, finding.note
    if feature.key in NEEDED:
        assert finding.outcome is Outcome.SUPPORTED, finding.note
