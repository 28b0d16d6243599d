"""A flow-control section, compiled: its plugins built and checked."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from pointsman_core.config.flow_control import Band, FlowControl
from pointsman_core.plugins import within
from pointsman_plugins.registry import Registry
from pointsman_plugins.scheduling.flow_control import FairnessPolicy, OrderingPolicy, SaturationDetector


class FlowRegistries(NamedTuple):
    """The plugin types of flow control's extension points."""

    fairness: Registry[FairnessPolicy]
    orderings: Registry[OrderingPolicy]
    detectors: Registry[SaturationDetector]


@dataclass(frozen=True, slots=True, eq=False)
class BandPolicy:
    """A band with its plugins."""

    settings: Band
    fairness: FairnessPolicy
    ordering: OrderingPolicy


@dataclass(frozen=True, slots=True, eq=False)
class FlowPolicy:
    """Flow control with its plugins."""

    settings: FlowControl
    detector: SaturationDetector
    bands: Mapping[int, BandPolicy]
    default_band: BandPolicy
    negative_band: BandPolicy

    @property
    def no_endpoint_ttl(self) -> float:
        """How long a request may wait while the pool has no endpoint, in seconds."""
        settings = self.settings
        return settings.ttl if settings.no_endpoint_ttl is None else settings.no_endpoint_ttl

    def policy_for(self, priority: int) -> BandPolicy:
        """The policy for requests of this priority."""
        return self.bands.get(priority) or (self.default_band if priority >= 0 else self.negative_band)


def compile_flow_control(settings: FlowControl, registries: FlowRegistries) -> FlowPolicy:
    """Build the plugins. PluginError names the faulty plugin and its place in the configuration."""
    with within("detector"):
        detector = registries.detectors.one(settings.detector.spec)
    return FlowPolicy(
        settings=settings,
        detector=detector,
        bands={priority: _band(("bands", priority), band, registries) for priority, band in settings.bands.items()},
        default_band=_band(("default_band",), settings.default_band, registries),
        negative_band=_band(("negative_band",), settings.negative_band, registries),
    )


def _band(place: tuple[str | int, ...], band: Band, registries: FlowRegistries) -> BandPolicy:
    with within(*place, "fairness"):
        fairness = registries.fairness.one(band.fairness.spec)
    with within(*place, "ordering"):
        ordering = registries.orderings.one(band.ordering.spec)
    return BandPolicy(band, fairness, ordering)
