"""`disaggregated`: prompt and answer on different workers."""

from collections.abc import Collection, Mapping, Sequence
from typing import ClassVar, Final, Literal

from pointsman_contracts.reply import PrefillLeg
from pointsman_plugins.plugin import Params, Reference
from pointsman_plugins.scheduling.points import Decider, LegDecider, ProfileHandler, need_profile
from pointsman_plugins.scheduling.request import ScheduleRequest
from pointsman_plugins.scheduling.run import Run, Selection

PREFILL: Final = "prefill"
ENCODE: Final = "encode"
BOOTSTRAP_PORT: Final = "bootstrap_port"
"""Label of an SGLang engine: the port at which the engine that answers finds it."""


class DisaggregatedParams(Params):
    first: Literal["decode", "prefill"] = "decode"
    """The profile that runs first. With `decode`, the decider knows how much of the prompt the endpoint that answers
    holds."""
    decode: str = "decode"
    """Scheduling profile of the endpoint that answers."""
    prefill: str = "prefill"
    """Scheduling profile of the worker that computes the prompt."""
    encode: str | None = None
    """Scheduling profile of the worker that encodes images, audio and video; none by default."""
    prefill_when: Reference | None = None
    """A decider; without one every prompt is computed elsewhere."""
    encode_when: Reference | None = None
    """A decider; without one everything is encoded elsewhere."""
    prefill_by: Literal["edge", "sidecar"] = "edge"
    """Who sends the prompt to its worker. `edge`: the frontend, where both workers are of one kind that it knows;
    behind Envoy always a sidecar. `sidecar`: one before the endpoint that answers, which reads the header."""


class Disaggregated(ProfileHandler[DisaggregatedParams]):
    """Runs the decode profile, and the others when their deciders want them. A request whose prefill or encode run
    fails, or falls on the worker that answers, is served by that one alone."""

    type_name = "disaggregated"
    pre_request: ClassVar[tuple[str, ...]] = ("prefill-header",)

    def setup(self) -> None:
        self._prefill_when = self._decider(self.params.prefill_when)
        self._encode_when = self._decider(self.params.encode_when)

    def _decider(self, reference: str | None) -> Decider | None:
        return None if reference is None else self.refer(reference, Decider)

    def check(self, profiles: Collection[str]) -> None:
        for profile in (self.params.decode, self.params.prefill, self.params.encode):
            if profile is not None:
                need_profile(self, profile, profiles)

    def pick(
        self, request: ScheduleRequest, profiles: Collection[str], results: Mapping[str, Run | None]
    ) -> Sequence[str]:
        params = self.params
        if params.first == "prefill":
            if not results and _wanted(self._prefill_when, request, None):
                return (params.prefill,)
            if params.decode not in results:
                return (params.decode,)
        elif params.decode not in results:
            return (params.decode,)
        decode = results[params.decode]
        if decode is None:
            return ()
        further: list[str] = []
        if params.encode is not None and _wanted(self._encode_when, request, decode):
            further.append(params.encode)
        if params.first == "decode" and _wanted(self._prefill_when, request, decode):
            further.append(params.prefill)
        return further

    def process_results(self, request: ScheduleRequest, results: Mapping[str, Run | None]) -> Selection | None:
        decode = results[self.params.decode]
        if decode is None:
            return None
        selection = Selection(decode)
        prefill = results.get(self.params.prefill)
        used = prefill is None or self._pays(request, selection, prefill)
        for leg, profile in ((PREFILL, self.params.prefill), (ENCODE, self.params.encode)):
            if profile is None or profile not in results or (leg == PREFILL and not used):
                continue
            run = results[profile]
            if run is None:
                selection.degraded.append(f"no worker for {leg}: the endpoint that answers does it")
            elif run.chosen[0] != decode.chosen[0]:
                selection.legs[leg] = run
        if prefill is not None and PREFILL in selection.legs:
            selection.prompt_leg = PREFILL
            if self.params.prefill_by == "edge":
                selection.prefill = _leg(prefill, decode)
        return selection

    def _pays(self, request: ScheduleRequest, selection: Selection, prefill: Run) -> bool:
        """Whether the decider that compares, if there is one, wants the prompt computed by that run's choice."""
        decider, decode = self._prefill_when, selection.primary
        if not isinstance(decider, LegDecider) or prefill.chosen[0] == decode.chosen[0]:
            return True
        selection.forecast = forecast = decider.weigh(request, decode, prefill)
        return forecast is None or forecast.pays


def _leg(prefill: Run, decode: Run) -> PrefillLeg | None:
    """The leg for an edge that sends it; None for two kinds of engines, which can't hand over a KV cache."""
    one, other = (run.candidates.fleet.workers[run.chosen[0]].registration for run in (prefill, decode))
    if one.engine != other.engine:
        return None
    port = one.labels.get(BOOTSTRAP_PORT, "")
    return PrefillLeg(
        worker=one.worker,
        url=one.url,
        engine=one.engine,
        bootstrap_port=int(port) if port.isdecimal() else None,
        rank=one.rank,
        rank_field=one.rank_field,
        ranks=one.ranks,
    )


def _wanted(decider: Decider | None, request: ScheduleRequest, run: Run | None) -> bool:
    return decider is None or decider.wanted(request, run)
