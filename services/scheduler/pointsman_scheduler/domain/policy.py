"""A scheduling policy, compiled from configuration: every plugin built and checked before the first request."""

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeVar

from pointsman_core.config import SchedulingPolicy, SchedulingProfile
from pointsman_core.plugins import PluginError, Spec, within
from pointsman_delay import DelayForecast, PassSizeSearch
from pointsman_plugins.plugin import Plugin
from pointsman_plugins.registry import Registry, check_dataflow
from pointsman_plugins.scheduling.flow_control import FairnessPolicy, OrderingPolicy, SaturationDetector
from pointsman_plugins.scheduling.points import (
    MATCHED_TOKENS,
    Decider,
    Filter,
    Picker,
    PreRequest,
    Producer,
    ProfileHandler,
    ResponseObserver,
    Scorer,
)
from pointsman_scheduler.domain.cache_room import CacheRoomObserver, CacheRoomPolicy, new_observer
from pointsman_scheduler.domain.flow_control import FlowPolicy, FlowRegistries, compile_flow_control
from pointsman_scheduler.domain.late_binding import LateBindingPolicy
from pointsman_scheduler.domain.profile import CompiledProfile
from pointsman_scheduler.domain.sticky import STICKY, BindsSessions, Sticky

_FORESEEN: Final = frozenset(("least-delay", "lora-affinity", "queue"))
"""Scorers that leave the choice to the predicted delay, for a request without an adapter."""

P = TypeVar("P", bound=Plugin)


class PolicyRegistries(NamedTuple):
    """The plugin types of every extension point."""

    producers: Registry[Producer]
    deciders: Registry[Decider]
    handlers: Registry[ProfileHandler]
    filters: Registry[Filter]
    scorers: Registry[Scorer]
    pickers: Registry[Picker]
    pre_requests: Registry[PreRequest]
    observers: Registry[ResponseObserver]
    fairness: Registry[FairnessPolicy]
    orderings: Registry[OrderingPolicy]
    detectors: Registry[SaturationDetector]


@dataclass(slots=True, eq=False)
class Policy:
    """One compiled policy, for each pool and configuration revision; plugins may keep state of their own."""

    name: str
    hash: str
    """12 hexadecimal digits; equal hashes decide alike."""
    settings: str
    """The settings that it was compiled from, as JSON."""
    producers: tuple[Producer, ...]
    handler: ProfileHandler
    profiles: Mapping[str, CompiledProfile]
    pre_requests: tuple[PreRequest, ...]
    observers: tuple[ResponseObserver, ...]
    """Every plugin that observes responses, of any extension point."""
    flow_control: FlowPolicy
    """Flow control: which requests wait while the pool is saturated."""
    late_binding: LateBindingPolicy | None
    """None when requests are bound on arrival."""
    forecast: PassSizeSearch | None
    """The delay model of a producer; None without one."""
    sticky: Sticky | None = None
    """Sessions that stay with their engine; None when none does."""
    room: CacheRoomPolicy | None = None
    """Whether requests wait for room in engines' KV caches; None when none does."""


class Instances:
    """Plugin instances of one pool across configuration revisions. An instance whose configuration is the same is kept,
    and with it the state that it has learnt."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, str, str, str, tuple[int, ...]], Plugin] = {}
        self.cache_room: Final = new_observer()

    def build(
        self, place: str, registry: Registry[P], specs: Sequence[Spec], others: Mapping[str, Plugin] | None = None
    ) -> list[P]:
        """Like `Registry.build`; `place` distinguishes lists of the same policy."""

        def keep(spec: Spec, plugin: P) -> P:
            referred = tuple(map(id, plugin.referred()))  # all kept, so that their ids stay theirs
            key = (place, spec.use, spec.name, repr(sorted(spec.params.items())), referred)
            kept = self._kept.setdefault(key, plugin)
            return kept if isinstance(kept, registry.point) else plugin

        return registry.build(specs, others, keep)

    def one(self, place: str, registry: Registry[P], spec: Spec, others: Mapping[str, Plugin] | None = None) -> P:
        """A single instance, which stands in no list."""
        try:
            (built,) = self.build(place, registry, [spec], others)
        except PluginError as error:
            raise PluginError(str(error), error.path[1:]) from error  # without its place in a list of one
        return built


def compile_policy(
    name: str, settings: SchedulingPolicy, registries: PolicyRegistries, instances: Instances | None = None
) -> Policy:
    """Build a policy. PluginError names the faulty plugin, its place, and the valid values."""
    with within(name):
        return _compile(name, settings, registries, instances or Instances())


def _compile(name: str, settings: SchedulingPolicy, registries: PolicyRegistries, kept: Instances) -> Policy:
    with within("deciders"):
        deciders = kept.build("deciders", registries.deciders, [use.spec for use in settings.deciders])
    with within("handler"):
        known = {decider.name: decider for decider in deciders}
        handler = kept.one("handler", registries.handlers, settings.handler.spec, known)
        handler.check(settings.profiles)
    profiles: dict[str, CompiledProfile] = {}
    for profile, written in settings.profiles.items():
        with within("profiles", profile):
            profiles[profile] = _profile(profile, written, registries, kept, known)
    pre_specs = [use.spec for use in settings.pre_request]
    pre_specs += [Spec(use, use, {}) for use in handler.pre_request if use not in {spec.use for spec in pre_specs}]
    with within("pre-request"):
        pre_requests = kept.build("pre-request", registries.pre_requests, pre_specs)
    with within("observers"):
        observers = kept.build("observers", registries.observers, [use.spec for use in settings.observers])

    consumers: list[Plugin] = [*deciders, handler, *pre_requests, *observers]
    for profile in profiles.values():
        consumers += [*profile.filters, *profile.scorers, profile.picker, *profile.called]
    producers = _producers(settings, registries, kept, consumers)
    check_dataflow([*producers, *consumers], [MATCHED_TOKENS])
    with within("flow_control"):
        flow_control = compile_flow_control(
            settings.flow_control, FlowRegistries(registries.fairness, registries.orderings, registries.detectors)
        )
    sticky, bindings = _sticky(settings, registries, kept)
    document = settings.model_dump_json()
    forecast = next((each.estimator for each in producers if isinstance(each, DelayForecast)), None)
    room, followers = _cache_room(settings, kept.cache_room, forecast)
    return Policy(
        name=name,
        hash=hashlib.sha256(document.encode()).hexdigest()[:12],
        settings=settings.model_dump_json(by_alias=True),
        producers=tuple(producers),
        handler=handler,
        profiles=profiles,
        pre_requests=tuple(pre_requests),
        observers=tuple(_observing([*producers, *consumers, *bindings, *followers])),
        flow_control=flow_control,
        late_binding=_late_binding(settings, forecast),
        forecast=forecast,
        sticky=sticky,
        room=room,
    )


def _profile(
    name: str,
    settings: SchedulingProfile,
    registries: PolicyRegistries,
    kept: Instances,
    deciders: Mapping[str, Plugin],
) -> CompiledProfile:
    with within("filters"):
        filters = kept.build(name, registries.filters, [use.spec for use in settings.filters], deciders)
    with within("scorers"):
        scorers = kept.build(name, registries.scorers, [use.spec for use in settings.scorers], deciders)
    with within("picker"):
        picker = kept.one(name, registries.pickers, settings.picker.spec)
    weighed = [
        (scorer, use.weight)
        for scorer, use in zip(scorers, settings.scorers, strict=True)
        if not scorer.called_by_another
    ]
    return CompiledProfile(
        name,
        [each for each in filters if not each.called_by_another],
        weighed,
        picker,
        [each for each in (*filters, *scorers) if each.called_by_another],
    )


def _producers(
    settings: SchedulingPolicy, registries: PolicyRegistries, kept: Instances, consumers: Iterable[Plugin]
) -> list[Producer]:
    """The configured producers; before them, producers that are needed but weren't configured."""
    with within("producers"):
        producers = kept.build("producers", registries.producers, [use.spec for use in settings.producers])
    waiting: list[Plugin] = [*consumers, *producers]
    while waiting:
        for key in waiting.pop(0).consumes:
            if key.name == MATCHED_TOKENS.name or any(key in producer.produces for producer in producers):
                continue
            suitable = next((kind for kind in registries.producers.types.values() if key in kind.produces), None)
            if suitable is not None:
                spec = Spec(suitable.type_name, suitable.type_name, {})
                added = kept.build("producers", registries.producers, [spec])
                producers[:0] = added
                waiting += added
    return producers


def _sticky(
    settings: SchedulingPolicy, registries: PolicyRegistries, kept: Instances
) -> tuple[Sticky | None, list[Producer]]:
    """The policy's `sticky`, and the plugin that learns from all schedulers' choices which worker serves a session."""
    if settings.sticky is None:
        return None, []
    with within("sticky"):
        bindings = kept.build("sticky", registries.producers, [Spec("session", STICKY, {"ttl": settings.sticky.for_})])
    (plugin,) = bindings
    if not isinstance(plugin, BindsSessions):
        raise PluginError("the producer `session` of another distribution keeps no bindings")
    return Sticky(plugin.bound_worker, frozenset(settings.sticky.unless)), bindings


def _cache_room(
    settings: SchedulingPolicy, observer: CacheRoomObserver, forecast: PassSizeSearch | None
) -> tuple[CacheRoomPolicy | None, list[CacheRoomObserver]]:
    """The policy's `cache_room`, and the plugin that follows which tokens have a use."""
    if not settings.cache_room.enabled:
        return None, []
    observer.forecast = forecast
    return CacheRoomPolicy(observer.room, settings.cache_room.patience * 1000.0), [observer]


def _late_binding(settings: SchedulingPolicy, delays: PassSizeSearch | None) -> LateBindingPolicy | None:
    """Late binding, only where every deciding plugin is one that it accounts for."""
    late = settings.late_binding
    if not late.enabled or delays is None:
        return None
    for profile in settings.profiles.values():
        if profile.picker.use != "max-score" or any(scorer.use not in _FORESEEN for scorer in profile.scorers):
            return None
    flow = settings.flow_control
    waits_ms = flow.ttl * 1000.0 if flow.enabled else math.inf
    return LateBindingPolicy(delays, late.slowdown, late.max_requests, waits_ms)


def _observing(plugins: Iterable[Plugin]) -> list[ResponseObserver]:
    return [plugin for plugin in plugins if isinstance(plugin, ResponseObserver)]
