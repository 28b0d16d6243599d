"""The list of models: all of them, or those that the client's identity may use."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final, cast

import orjson

from pointsman_contracts.journey import HeaderEdit, PreprocessRequest
from pointsman_contracts.pool import PoolSnapshot
from pointsman_contracts.reply import Answer, Rejection
from pointsman_core.config import AUTO, Config, identifies
from pointsman_core.permission import may_ask, may_use
from pointsman_core.refusal import Refusal
from pointsman_edge.deciding.decider import Decider, StagesMissing, refusal_of
from pointsman_edge.deciding.policy import EdgePolicy
from pointsman_edge.deciding.static_choice import Closed, model_names
from pointsman_edge.taking_in.request_headers import HeaderRules
from pointsman_edge.taking_in.trust import TrustedProxies

METHOD: Final = "GET"
PATH: Final = "/v1/models"
PATIENCE_S: Final = 5.0

Header = tuple[bytes, bytes]


class NotListed(Refusal):
    """The stages refuse the list of models."""

    def __init__(self, rejection: Rejection) -> None:
        refusal = refusal_of(rejection)
        super().__init__(
            refusal.status,
            refusal.message,
            type=refusal.type,
            code=refusal.code,
            retry_after_s=refusal.retry_after_s,
        )
        self.answer_headers: tuple[HeaderEdit, ...] = rejection.answer_headers


class ModelCatalogue:
    """Asks the preprocessor for the client's identity if the configuration restricts models by it."""

    def __init__(
        self,
        edge: str,
        policy: Callable[[], EdgePolicy],
        pools: Mapping[str, PoolSnapshot],
        headers: HeaderRules,
        trusted: TrustedProxies,
        decider: Decider,
    ) -> None:
        self._edge: Final = edge
        self._policy: Final = policy
        self._pools: Final = pools
        self._headers: Final = headers
        self._trusted: Final = trusted
        self._decider: Final = decider

    async def names(self, headers: list[Header], peer: str, request_id: str) -> list[str]:
        """Every name that a request of this client may use; `headers` with names in lower case. Raises Refusal."""
        policy = self._policy()
        config = policy.config
        known = model_names(config, self._pools)
        # Last: some clients take the first one unasked.
        auto = [AUTO] if policy.static.selectable and AUTO not in known else []
        if not any(identifies(use) for use in config.preprocessing):
            return known + auto
        read = self._headers.read(headers, trusted=self._trusted.is_trusted(peer))
        now_ms = time.time_ns() // 1_000_000
        request = PreprocessRequest(
            request_id=request_id,
            edge=self._edge,
            received_ms=now_ms,
            deadline_ms=now_ms + round(PATIENCE_S * 1000),
            revision=policy.revision,
            method=METHOD,
            path=PATH,
            headers=read.stages,
            client=self._trusted.client_of(peer, read.forwarded_for),
        )
        try:
            reply = await self._decider.ask(request, policy)
        except StagesMissing as missing:
            raise Closed(
                "The gateway can't list the models at the moment; try again shortly.", detail=str(missing)
            ) from missing
        if isinstance(reply, Rejection):
            raise NotListed(reply)
        if not isinstance(reply, Answer):
            raise Refusal(
                500,
                "The gateway could not read the list of models that this identity may use.",
                type="server_error",
                code="internal_error",
            )
        allowed = cast("Sequence[str] | None", orjson.loads(reply.body)["models"])
        if allowed is None:
            return known + auto
        choosable = any(_may_name(config, allowed, name) for name in policy.static.selectable)
        return [name for name in known if _may_name(config, allowed, name)] + (auto if choosable else [])


def _may_name(config: Config, allowed: Sequence[str], name: str) -> bool:
    if may_use(allowed, name, _groups(config, name)):
        return True
    targets = [target for rewrite in config.rewrites if name in rewrite.match for target in rewrite.to]
    if targets and may_ask(allowed, name):
        return True
    # A rewritten name is allowed if one of its targets is.
    return any(may_use(allowed, target, _groups(config, target)) for target in targets)


def _groups(config: Config, name: str) -> Sequence[str]:
    model = config.models.get(name)
    return model.groups if model is not None else ()
