"""An edge without the stages."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from pointsman_contracts.batch import LENT_PREFIX
from pointsman_contracts.journey import PreprocessRequest
from pointsman_contracts.pool import PoolSnapshot, WorkerView
from pointsman_core.config import load
from pointsman_edge.deciding.decider import Decider, EngineLoad, Stages, StagesMissing
from pointsman_edge.deciding.policy import compile_policy, useless_alone
from pointsman_edge.deciding.static_choice import Closed

POOL: dict[str, Any] = {"pools": {"p": {"models": ["m"]}}}
LISTED: dict[str, Any] = {"pools": {"p": {"models": ["m"], "discovery": "static", "engines": ["http://e:1"]}}}
PROVIDER: dict[str, Any] = {
    "providers": {"far": {"kind": "openai", "base_url": "https://api.example/v1", "credential": "env:KEY"}},
    "models": {"m": {"provider": "far"}},
}
WORKER = WorkerView(worker="w", url="http://10.0.0.1:1")
SNAPSHOT = PoolSnapshot(pool="p", source="c", sequence=1, at_ms=1, workers=(WORKER,))
INSISTING = POOL | {"profiles": {"standard": {"static": "deny"}}}


@pytest.mark.parametrize(
    ("config", "heard", "providers", "useful"),
    [
        (POOL, False, True, False),
        (POOL, True, False, True),
        (LISTED, False, False, True),
        (PROVIDER, False, True, True),
        (PROVIDER, False, False, False),
        (INSISTING, True, True, False),
    ],
    ids=["nobody known", "engines heard of", "engines listed", "a provider", "a provider out of reach", "not allowed"],
)
def test_an_edge_is_of_use_alone_where_it_may_decide_and_knows_an_engine(
    config: dict[str, Any], *, heard: bool, providers: bool, useful: bool
) -> None:
    pools = {"p": SNAPSHOT} if heard else {}
    assert (useless_alone(compile_policy(load(config), 1), pools, providers=providers) is None) == useful


async def test_an_edge_alone_decides_for_clients_but_not_for_a_line_whose_batch_it_cannot_know() -> None:
    async def ask(*_: object) -> None:
        raise StagesMissing("bus disconnected")

    decider = Decider(cast("Stages", SimpleNamespace(ask=ask, usable=None)), {"p": SNAPSHOT}, EngineLoad())
    policy = compile_policy(load(POOL), 1)

    def request(authorization: str) -> PreprocessRequest:
        return PreprocessRequest(
            request_id="r",
            edge="e",
            received_ms=1,
            deadline_ms=2,
            revision=1,
            method="POST",
            path="/v1/completions",
            headers={"authorization": authorization},
        )

    body = b'{"model": "m", "prompt": "x"}'
    decided = await decider.decide(request("Bearer a-key"), body, policy, None)
    assert getattr(decided, "level", "") == "static"
    # Its usage would be charged to no batch, and the engine would get the token of its identity.
    with pytest.raises(Closed, match="lent to a request of a batch"):
        await decider.decide(request(f"Bearer {LENT_PREFIX}x"), body, policy, None)
