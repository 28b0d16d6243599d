"""An edge without the stages."""

from typing import Any

import pytest

from pointsman_contracts.pool import PoolSnapshot, WorkerView
from pointsman_core.config import load
from pointsman_edge.deciding.policy import compile_policy, useless_alone

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
