"""The model that serves a name, and the priority of an objective: from the configuration, or else from a cluster's
InferenceObjectives and InferenceModelRewrites."""

from collections.abc import Mapping
from typing import Final, NamedTuple

from pointsman_contracts.pool import PoolRewrite, PoolRules
from pointsman_core.config import Config
from pointsman_core.dealing import Dealer
from pointsman_core.rewriting import Rewrites, Rewritten

_NO_HEADERS: Final[Mapping[str, str]] = {}


class _Rule(NamedTuple):
    label: str
    dealer: Dealer

    @classmethod
    def of(cls, pool: str, rewrite: PoolRewrite) -> "_Rule":
        label = f"{pool}/{rewrite.source}"
        return cls(label, Dealer(label, {target.model: target.weight for target in rewrite.to}))

    def rewritten(self, key: str) -> Rewritten:
        return Rewritten(self.dealer.arm_of(key), self.label)


class NameRules:
    """The rules of one configuration revision, and of the cluster's current state."""

    def __init__(self, config: Config) -> None:
        self.conflicts: tuple[str, ...] = ()
        """Rules of the cluster that are overruled, each with the rule that overrules it."""
        self.rewrite: bool = bool(config.rewrites)
        """Whether any rule puts another model in the place of the one that a request names."""
        self._configured: Final = Rewrites(config.rewrites)
        self._objectives: Final = config.objectives
        self._pools: Final = tuple(config.pools)
        self._pool_of: Final = {
            name: target.pool for name in config.model_names() if (target := config.find_target(name)) is not None
        }
        self._exact: dict[str, _Rule] = {}
        self._whole_pools: dict[str, _Rule] = {}
        self._priorities: dict[str, Mapping[str, int]] = {}

    def set_cluster_rules(self, pools: Mapping[str, PoolRules]) -> None:
        """Take over the cluster's current rules, of all pools."""
        conflicts: list[str] = []
        exact: dict[str, _Rule] = {}
        whole_pools: dict[str, _Rule] = {}
        rules = {pool: pools[pool] for pool in self._pools if pool in pools}
        for pool, said in rules.items():
            for rewrite in said.rewrites:
                if not rewrite.to:
                    continue
                rule = _Rule.of(pool, rewrite)
                if not rewrite.match:
                    whole_pools.setdefault(pool, rule)
                for name in rewrite.match:
                    against = self._against(name, pool, exact)
                    if against is None:
                        exact.setdefault(name, rule)
                    elif against:
                        conflicts.append(f"InferenceModelRewrite {rule.label} for the model {name!r}: {against}")
            conflicts += [
                f"InferenceObjective {pool}/{name} with priority {priority}: "
                f"the configuration says {self._objectives[name]}"
                for name, priority in said.objectives.items()
                if self._objectives.get(name, priority) != priority
            ]
        self._exact, self._whole_pools = exact, whole_pools
        self.rewrite = self._configured.has_rules or bool(exact or whole_pools)
        self._priorities = {pool: said.objectives for pool, said in rules.items()}
        self.conflicts = tuple(conflicts)

    def _against(self, name: str, pool: str, exact: Mapping[str, _Rule]) -> str | None:
        """The rule that overrules this name; None without one, empty for the same pool's older rule, which has
        precedence in the API."""
        configured = self._configured.find_rewrite(name, "", None, _NO_HEADERS)
        if configured is not None:
            return f"the configuration rewrites it (rewrites: {configured.rule})"
        serving = self._pool_of.get(name, pool)
        if serving != pool:
            return f"the configuration serves it by {serving or 'a provider'}"
        earlier = exact.get(name)
        if earlier is None:
            return None
        return "" if earlier.label.startswith(f"{pool}/") else f"{earlier.label} rewrites it"

    def rewrite_model(
        self, model: str, request_id: str, session: str | None, headers: Mapping[str, str]
    ) -> Rewritten | None:
        """The model that serves a request for `model`; None without a rule for it. Header names are in lower case."""
        found = self._configured.find_rewrite(model, request_id, session, headers)
        if found is not None:
            return found
        rule = self._exact.get(model)
        if rule is None and self._whole_pools:
            pool = self._pool_of.get(model)
            # An unknown name belongs to the only pool, if there is just one.
            if pool is None and len(self._pools) == 1 and model not in self._pool_of:
                pool = self._pools[0]
            rule = None if pool is None else self._whole_pools.get(pool)
        return None if rule is None else rule.rewritten(session or request_id)

    def priority_of(self, objective: str, model: str) -> int:
        """The priority of a request for `model` with this objective; 0 for an unknown one.

        Before a model's pool is known, the first pool of the configuration that has the objective counts.
        """
        configured = self._objectives.get(objective)
        if configured is not None:
            return configured
        pool = self._pool_of.get(model)
        if pool is not None:
            return self._priorities.get(pool, {}).get(objective, 0)
        return next((said[objective] for said in self._priorities.values() if objective in said), 0)
