"""Picks the profile of each request and writes its itinerary."""

import time
from typing import Final

from prometheus_client import CollectorRegistry

from pointsman_contracts.journey import Journey, JourneyChanges
from pointsman_contracts.pool import PoolSnapshot
from pointsman_contracts.reply import Rejection
from pointsman_core.permission import allowed_models
from pointsman_core.refusal import Refusal
from pointsman_core.settled_target import settled
from pointsman_hosting.configuration import Configuration
from pointsman_journey.hop import Hop
from pointsman_plugins.picking import PickError, PoolStates
from pointsman_profile_picker.domain.route import Routing
from pointsman_runtime.telling.counting import Count, Counter
from pointsman_runtime.telling.logs import Log

_log = Log("profile-picker")


class Handlers:
    """Picks by the configuration revision that each request keeps to, and by the newest state of the pools."""

    def __init__(self, configuration: Configuration[Routing], registry: CollectorRegistry) -> None:
        self._configuration: Final = configuration
        self._pools: Final = PoolStates()
        self._picked: Final = Counter(
            "pointsman_profile_picked", "Requests by profile.", ["profile"], registry=registry
        )
        self._failed: Final = Counter(
            "pointsman_profile_pick_failed",
            "Requests at which the picker failed, by rule.",
            ["rule"],
            registry=registry,
        )
        self._counts: dict[str, Count] = {}
        self._told: set[tuple[int, str]] = set()

    def snapshot(self, snapshot: PoolSnapshot) -> None:
        """A pool's newest state."""
        self._pools.update(snapshot, time.monotonic())

    def pick(self, journey: Journey, hop: Hop[Journey]) -> Journey | Rejection:
        """Choose the profile, write its itinerary, settle the target unless the profile selects a model."""
        routing = self._configuration.revisions[journey.revision].compiled
        try:
            profile, route, note, old_pools = routing.pick_profile(journey, self._pools, time.monotonic())
            changes: JourneyChanges = {
                "profile": profile,
                "itinerary": route.request,
                "response": route.response,
            }
            asked = journey.model
            if routing.has_levels or journey.request.attributes:
                changes["request"] = facts = routing.promise_level(journey.request, route, journey.rewritten or asked)
                journey = journey.changed(request=facts)
            if not route.selects:
                attributes = journey.request.attributes
                allowed = allowed_models(attributes) if attributes else None
                target, block_tokens, alternatives = routing.find_serving(
                    journey.rewritten or asked, self._pools, asked, allowed
                )
                changes.update(settled(journey, target, block_tokens))
                changes["alternatives"] = alternatives
        except Refusal as refusal:
            return hop.refuse(refusal)
        except PickError as error:
            return self._pick_failed(error, journey, hop)
        if old_pools:
            changes["level"] = "degraded"
            changes["reasons"] = (*journey.reasons, f"old state of {', '.join(old_pools)}")
        if not journey.request.dry_run:
            counter = self._counts.get(profile)
            if counter is None:
                counter = self._counts[profile] = self._picked.labels(profile)
            counter.total += 1
        advanced = hop.advance_with(changes, note)
        before, after = routing.before_model, None if route.selects else routing.after_model
        if before is None and after is None:
            return advanced
        process = hop.onward.process
        for chain in (before, after):
            if chain is not None:
                advanced, refusal = chain.process_request(advanced, process.service, process.instance)
                if refusal is not None:
                    return hop.refuse_further(advanced, refusal)
        return advanced

    def _pick_failed(self, error: PickError, journey: Journey, hop: Hop[Journey]) -> Rejection:
        if not journey.request.dry_run:
            self._failed.labels(error.rule).inc()
        told = (journey.revision, error.rule)
        if told not in self._told:
            self._told.add(told)
            _log.warning(
                "pick_failed",
                rule=error.rule,
                reason=error.reason,
                revision=journey.revision,
                request_id=journey.request_id,
                hint="logged once per rule and revision; pointsman_profile_pick_failed counts every request",
            )
        return hop.reject(
            500,
            f"Failed to pick a profile for request {journey.request_id}; the operator's log names the rule.",
            code="profile_pick_failed",
        )
