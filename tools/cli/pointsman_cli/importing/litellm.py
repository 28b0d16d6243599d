"""A LiteLLM proxy's config.yaml (https://docs.litellm.ai/docs/proxy/config_settings)."""

import re
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from typing import Final, NamedTuple

from pointsman_cli.importing.imported import Document, Imported, listed, loaded, mapping

_KINDS: Final = {
    "openai": "openai",
    "text-completion-openai": "openai",
    "custom_openai": "openai",
    "azure": "azure",
    "anthropic": "anthropic",
    "bedrock": "bedrock",
    "vertex_ai": "vertex",
}
_URLS: Final = {
    "gemini": "https://generativelanguage.googleapis.com/v1beta/openai",
    "groq": "https://api.groq.com/openai/v1",
    "mistral": "https://api.mistral.ai/v1",
    "deepseek": "https://api.deepseek.com/v1",
    "together_ai": "https://api.together.xyz/v1",
    "fireworks_ai": "https://api.fireworks.ai/inference/v1",
    "openrouter": "https://openrouter.ai/api/v1",
    "xai": "https://api.x.ai/v1",
    "perplexity": "https://api.perplexity.ai",
    "cerebras": "https://api.cerebras.ai/v1",
}
"""Services with OpenAI's API, by LiteLLM's prefix."""
_ENGINES: Final = ("hosted_vllm", "vllm", "openai_like", "ollama", "ollama_chat", "lm_studio")
"""Prefixes of engines of one's own."""
_READ: Final = frozenset({
    "model", "api_base", "api_key", "api_version", "aws_region_name", "vertex_project", "vertex_location", "weight",
    "input_cost_per_token", "output_cost_per_token", "cache_read_input_token_cost", "max_tokens",
})  # fmt: skip
_KEY_OF_AN_ENGINE: Final = (
    "engines get no key from the gateway. For one that asks for a key, write a provider of kind openai instead, or let "
    "clients send it (POINTSMAN_FORWARD_CREDENTIALS)"
)
_NO_EQUAL: Final = {
    "rpm": "a limit of one deployment; limit requests by model with {use: infra-request-limit, per: [model]}",
    "tpm": "a limit of one deployment; limit tokens by model with {use: infra-token-limit, per: [model]}",
    "timeout": "a deadline of one model; edge.request_timeout is of all",
    "stream_timeout": "a deadline of one model; edge.request_timeout is of all",
    "max_retries": "an answer that failed before its first byte goes to the next endpoint or fallback",
}
_COSTS: Final = {
    "input": "input_cost_per_token",
    "output": "output_cost_per_token",
    "cached": "cache_read_input_token_cost",
}
_ROUTER: Final = {
    "routing_strategy": "engines are scored (docs/default-policy.md), and deployments of providers share by weight",
    "num_retries": "a request goes on to the next endpoint or fallback before its first byte, without a number to set",
    "timeout": "set edge.request_timeout",
    "allowed_fails": "an endpoint that fails is passed over by its own health",
    "cooldown_time": "an endpoint that fails is passed over by its own health",
    "enable_pre_call_checks": "a selector's filter `capable` looks at context lengths",
}
_SETTINGS: Final = {
    "drop_params": "a field that a provider doesn't support is rejected by name, or the next model is tried",
    "num_retries": _ROUTER["num_retries"],
    "request_timeout": "set edge.request_timeout",
    "cache": "put semantic-cache into a profile (docs/semantic-cache.md)",
    "cache_params": "the semantic-cache has its own store (docs/semantic-cache.md)",
    "callbacks": "read the events (docs/auditing.md), metrics or traces",
    "success_callback": "read the events (docs/auditing.md), metrics or traces",
    "failure_callback": "read the events (docs/auditing.md), metrics or traces",
    "guardrails": "put guard into a profile (docs/guard.md)",
    "context_window_fallbacks": "a selector's filter `capable` keeps models whose context is long enough",
}
_GENERAL: Final = {
    "master_key": "an operator logs in at NATS; clients get keys of `pointsman keys create`",
    "database_url": "not needed: keys, budgets and usage are in NATS and the recorder",
    "database_connection_pool_limit": "not needed: there is no database",
    "store_model_in_db": "the configuration is in NATS: pointsman config apply",
    "alerting": "alerts come from metrics: deploy/prometheus/alerts.yml",
    "proxy_batch_write_at": "not needed: usage is written as it comes",
}
_DURATION: Final = re.compile(r"([0-9]+)(d|mo)")


class _Deployment(NamedTuple):
    """One way to a model."""

    name: str
    served_as: str
    pool: str | None
    provider: str | None
    weight: int
    cost: Document
    embeds: bool


class _Reader:
    def __init__(self) -> None:
        self.made: Final = Imported()
        self._pools: Final[dict[str, Document]] = {}
        self._providers: Final[dict[str, Document]] = {}
        self._models: Final[dict[str, Document]] = {}
        self._rewrites: Final[list[Document]] = []

    def read(self, document: Mapping[str, object]) -> None:
        """The whole file."""
        groups: dict[str, list[_Deployment]] = {}
        for number, entry in enumerate(listed(document.get("model_list"), "model_list")):
            where = f"model_list.{number}"
            found = self._deployment(mapping(entry, where), where)
            if found is not None:
                groups.setdefault(found.name, []).append(found)
        for name, deployments in groups.items():
            self._group(name, deployments)
        used = {model.get("provider") for model in self._models.values()}
        for name in [name for name in self._providers if name not in used]:
            del self._providers[name]
        router = mapping(document.get("router_settings"), "router_settings")
        settings = mapping(document.get("litellm_settings"), "litellm_settings")
        general = mapping(document.get("general_settings"), "general_settings")
        self._fallbacks(
            [
                *listed(router.pop("fallbacks", None), "router_settings.fallbacks"),
                *listed(settings.pop("fallbacks", None), "litellm_settings.fallbacks"),
            ]
        )
        for alias, target in mapping(
            router.pop("model_group_alias", None), "router_settings.model_group_alias"
        ).items():
            name = target if isinstance(target, str) else mapping(target, alias).get("model")
            self._alias(alias, str(name))
        preprocessing: list[Document] = []
        if "master_key" in general:
            preprocessing.append({"use": "api-key-auth", "stored": True})
            preprocessing.append({"use": "budget", "name": "keys", "per": ["key"], "claim": "budget"})
        budget = self._budget(settings)
        if budget is not None:
            preprocessing.append({"use": "budget", "name": "all", "per": [], "amount": budget})
        self._rest("router_settings", router, _ROUTER, redis="not needed: replicas share their counts over NATS")
        self._rest("litellm_settings", settings, _SETTINGS)
        self._rest("general_settings", general, _GENERAL)
        for section in sorted(
            document.keys() - {"model_list", "router_settings", "litellm_settings", "general_settings"}
        ):
            self.made.note_ignored(section, "has no equivalent")
        sections: Mapping[str, object] = {
            "pools": self._pools,
            "providers": self._providers,
            "models": self._models,
            "rewrites": self._rewrites,
            "preprocessing": preprocessing,
        }
        self.made.document.update({name: section for name, section in sections.items() if section})

    def _deployment(self, entry: Document, where: str) -> _Deployment | None:
        name = str(entry.get("model_name") or "")
        params = mapping(entry.get("litellm_params"), f"{where}.litellm_params")
        info = mapping(entry.get("model_info"), f"{where}.model_info")
        model = str(params.get("model") or "")
        prefix, slash, rest = model.partition("/")
        known = prefix in (*_KINDS, *_URLS, *_ENGINES)
        prefix, served_as = (prefix, rest) if slash and known else ("openai", model)
        if not name or not model or "*" in name or "*" in model:
            self.made.note_ignored(
                where, f"{name or model or 'a model without a name'}: wildcards have no equivalent; list the models"
            )
            return None
        if slash and not known and "api_base" not in params:
            self.made.note_ignored(
                where, f"{model}: its provider has no equivalent; set base_url to its OpenAI-compatible API"
            )
            return None
        for key in sorted(params.keys() - _READ):
            self.made.note_ignored(f"{where}.litellm_params.{key}", _NO_EQUAL.get(key, "has no equivalent"))
        cost = self._cost({**info, **params}, where)
        weight = params.get("weight", 1)
        embeds = info.get("mode") == "embedding"
        if prefix in _ENGINES:
            if params.get("api_key"):
                self.made.note_ignored(f"{where}.litellm_params.api_key", _KEY_OF_AN_ENGINE)
            pool = self._pool(name, served_as, str(params.get("api_base") or ""), where)
            return (
                None
                if pool is None
                else _Deployment(
                    name=name,
                    served_as=served_as,
                    pool=pool,
                    provider=None,
                    weight=_whole(weight),
                    cost=cost,
                    embeds=embeds,
                )
            )
        provider = self._provider(prefix, params, where)
        return _Deployment(
            name=name,
            served_as=served_as,
            pool=None,
            provider=provider,
            weight=_whole(weight),
            cost=cost,
            embeds=embeds,
        )

    def _pool(self, name: str, served_as: str, url: str, where: str) -> str | None:
        if not url:
            self.made.note_ignored(where, f"{name}: an engine needs its api_base")
            return None
        pool = self._pools.setdefault(name, {"discovery": "static", "models": [served_as], "engines": []})
        engines = listed(pool["engines"], where)
        engines.append({"url": url.rstrip("/").removesuffix("/v1")})
        return name

    def _provider(self, prefix: str, params: Document, where: str) -> str:
        url = params.get("api_base") or _URLS.get(prefix)
        made: Document = {"kind": _KINDS.get(prefix, "openai")}
        if url is not None:
            made["base_url"] = str(url).rstrip("/")
        key = params.get("api_key")
        if isinstance(key, str) and key.startswith("os.environ/"):
            made["credential"] = f"env:{key.removeprefix('os.environ/')}"
        elif key is not None:
            variable = f"{re.sub('[^A-Z0-9]', '_', prefix.upper())}_API_KEY"
            made["credential"] = f"env:{variable}"
            self.made.note_ignored(
                f"{where}.litellm_params.api_key", f"a secret isn't copied; put it into the variable {variable}"
            )
        for theirs, ours in (("aws_region_name", "region"), ("vertex_project", "project"),
                             ("vertex_location", "location"), ("api_version", "api_version")):  # fmt: skip
            if params.get(theirs) is not None:
                made[ours] = str(params[theirs])
        return self._named(prefix.replace("_", "-"), made)

    def _named(self, base: str, made: Document) -> str:
        """The name of the provider with these settings; a new one begins with `base`."""
        for name, other in self._providers.items():
            if other == made:
                return name
        name, number = base, 2
        while name in self._providers:
            name = f"{base}-{number}"
            number += 1
        self._providers[name] = made
        return name

    def _cost(self, values: Document, where: str) -> Document:
        """Dollars per million tokens, of dollars per token."""
        found: Document = {}
        for ours, theirs in _COSTS.items():
            if values.get(theirs) is None:
                continue
            try:
                amount = Decimal(str(values[theirs])) * 1_000_000
            except InvalidOperation:
                self.made.note_ignored(f"{where}.{theirs}", "no number")
                continue
            found[ours] = float(amount)
        return found

    def _group(self, name: str, deployments: list[_Deployment]) -> None:
        # The engines of a pool are one model.
        distinct: dict[tuple[str | None, str | None, str], _Deployment] = {}
        for each in deployments:
            distinct.setdefault((each.pool, each.provider, each.served_as), each)
        several = self._joined(list(distinct.values()))
        names = [name] if len(several) == 1 else [f"{name}-{number}" for number in range(1, len(several) + 1)]
        for own, each in zip(names, several, strict=True):
            model: Document = {"pool": each.pool} if each.pool is not None else {"provider": each.provider}
            if each.served_as != own:
                model["served_as"] = each.served_as
            if each.cost:
                model["cost"] = each.cost
            if each.embeds:
                model["apis"] = ["embeddings"]
            others = [other for other in names if other != own]
            if others:
                model["fallbacks"] = others
            self._models[own] = model
        if len(several) > 1:
            weights = {own: each.weight for own, each in zip(names, several, strict=True)}
            self._rewrites.append({"match": [name], "to": weights})

    def _joined(self, deployments: list[_Deployment]) -> list[_Deployment]:
        """With those that differ by their key alone as one, whose provider has all keys."""
        groups: list[list[_Deployment]] = []
        for each in deployments:
            same = next((group for group in groups if self._differ_by_key(group[0], each)), None)
            if same is None:
                groups.append([each])
            else:
                same.append(each)
        return [self._with_keys(group) for group in groups]

    def _differ_by_key(self, one: _Deployment, other: _Deployment) -> bool:
        if one.provider is None or one._replace(provider=other.provider) != other:
            return False
        first, second = (self._providers[each] for each in (one.provider, str(other.provider)))
        return "credential" in first and first == {**second, "credential": first["credential"]}

    def _with_keys(self, group: list[_Deployment]) -> _Deployment:
        first, *others = group
        if not others:
            return first
        found = [self._providers[str(each.provider)]["credential"] for each in group]
        made = {**self._providers[str(first.provider)], "credential": found}
        return first._replace(provider=self._named(f"{first.provider}-keys", made))

    def _alias(self, alias: str, name: str) -> None:
        # A rewrite isn't rewritten again: one name more for what there is.
        for rewrite in self._rewrites:
            names = listed(rewrite["match"], alias)
            if name in names:
                names.append(alias)
                return
        self._rewrites.append({"match": [alias], "to": {name: 1}})

    def _fallbacks(self, entries: list[object]) -> None:
        for number, entry in enumerate(entries):
            for name, others in mapping(entry, f"fallbacks.{number}").items():
                model = self._models.get(name)
                known = [str(other) for other in listed(others, name) if str(other) in self._models]
                if model is None or not known:
                    self.made.note_ignored(f"fallbacks.{name}", "one model of each name is needed on both sides")
                    continue
                before = listed(model.get("fallbacks"), name)
                model["fallbacks"] = [*before, *(other for other in known if other not in before)]

    def _budget(self, settings: Document) -> str | None:
        amount, duration = settings.pop("max_budget", None), settings.pop("budget_duration", None)
        if amount is None:
            return None
        found = _DURATION.fullmatch(str(duration or "30d"))
        if found is None or (found[2] == "mo" and found[1] != "1"):
            self.made.note_ignored(
                "litellm_settings.budget_duration", f"{duration}: budgets count days or a calendar month"
            )
            return None
        return f"{amount}/{'month' if found[2] == 'mo' else found[0]}"

    def _rest(self, section: str, left: Document, words: Mapping[str, str], redis: str = "") -> None:
        for key in sorted(left):
            default = redis if redis and key.startswith("redis_") else "has no equivalent"
            self.made.note_ignored(f"{section}.{key}", words.get(key, default))


def read(text: str, source: str) -> Imported:
    """The configuration that does what this one does. CommandError for a text that isn't one."""
    reader = _Reader()
    reader.read(loaded(text, source))
    return reader.made


def _whole(weight: object) -> int:
    return max(1, round(weight)) if isinstance(weight, int | float) else 1
