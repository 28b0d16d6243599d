"""`cache-source-header`: the engine that another one pulls a prompt's KV cache from."""

from collections.abc import Sequence
from typing import Final

import numpy as np
from pydantic import Field

from pointsman_contracts.journey import HeaderEdit
from pointsman_contracts.kv import HOST
from pointsman_plugins.plugin import Params
from pointsman_plugins.scheduling.points import MATCHED_TOKENS, PreRequest
from pointsman_plugins.scheduling.request import ScheduleRequest
from pointsman_plugins.scheduling.run import Selection

SOURCE_HEADER: Final = "x-kv-cache-source-host-port"


class CacheSourceHeaderParams(Params):
    least_tokens: int = Field(default=256, ge=1)
    """Prompt tokens that the other engine must have more than the one that computes the prompt."""
    from_host_memory: bool = True
    """Whether engines serve what is in their host memory, as vLLM's peer-to-peer tier does; else what is on the device
    alone counts."""


class CacheSourceHeader(PreRequest[CacheSourceHeaderParams]):
    """`x-kv-cache-source-host-port: host:port` for the sidecar of the engine that computes the prompt: the engine that
    has most of it, where that is more than its own (as llm-d-router's p2p-source-producer). Removed otherwise, so that
    a client can't make an engine connect to an address of its choice. An engine that is ejected, or that doesn't
    serve, is no source."""

    type_name = "cache-source-header"
    consumes = (MATCHED_TOKENS,)

    def prepare(self, request: ScheduleRequest, selection: Selection) -> Sequence[HeaderEdit]:
        if MATCHED_TOKENS.name not in request.attributes:  # a session that stays with its engine
            return (HeaderEdit(name=SOURCE_HEADER, value=None),)
        computing = selection.legs[selection.prompt_leg] if selection.prompt_leg else selection.primary
        fleet, row = computing.candidates.fleet, computing.chosen[0]
        matched = request.get(MATCHED_TOKENS)
        reached = request.reached(matched)
        if self.params.from_host_memory and request.fetched is not None and HOST in request.fetched:
            matched = matched + request.fetched[HOST]
        serves = fleet.eligible_until >= computing.candidates.now
        offered = np.where(serves, matched, 0.0)
        source = int(offered.argmax())
        gains = source != row and offered.item(source) >= reached.item(row) + self.params.least_tokens
        return (HeaderEdit(name=SOURCE_HEADER, value=fleet.workers[source].address if gains else None),)
