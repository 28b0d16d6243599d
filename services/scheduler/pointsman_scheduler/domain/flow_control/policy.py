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
    """Same as `config.Band`."""

    max_requests: int | None
    max_bytes: int | None
    ceiling: float
    fairness: FairnessPolicy
    ordering: OrderingPolicy


@dataclass(frozen=True, slots=True, eq=False)
class FlowPolicy:
    """Same as `config.FlowControl`."""

    settings: FlowControl
    enabled: bool
    detector: SaturationDetector
    bands: Mapping[int, BandPolicy]
    default_band: BandPolicy
    negative_band: BandPolicy
    max_requests: int | None
    max_bytes: int | None
    ttl: float
    no_endpoint_ttl: float

    def band(self, priority: int) -> BandPolicy:
        """The policy for requests of this priority."""
        return self.bands.get(priority) or (self.default_band if priority >= 0 else self.negative_band)


def compile_flow_control(settings: FlowControl, registries: FlowRegistries) -> FlowPolicy:
    """Build the plugins. PluginError names the faulty plugin and its place in the configuration."""
    with within("detector"):
        detector = registries.detectors.one(settings.detector.spec)
    return FlowPolicy(
        settings=settings,
        enabled=settings.enabled,
        detector=detector,
        bands={priority: _band(("bands", priority), band, registries) for priority, band in settings.bands.items()},
        default_band=_band(("default_band",), settings.default_band, registries),
        negative_band=_band(("negative_band",), settings.negative_band, registries),
        max_requests=settings.max_requests,
        max_bytes=settings.max_bytes,
        ttl=settings.ttl,
        no_endpoint_ttl=settings.ttl if settings.no_endpoint_ttl is None else settings.no_endpoint_ttl,
    )


def _band(place: tuple[str | int, ...], band: Band, registries: FlowRegistries) -> BandPolicy:
    with within(*place, "fairness"):
        fairness = registries.fairness.one(band.fairness.spec)
    with within(*place, "ordering"):
        ordering = registries.orderings.one(band.ordering.spec)
    return BandPolicy(band.max_requests, band.max_bytes, band.ceiling, fairness, ordering)
