"""The models that engines list, and the pools that follow from them."""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import aiohttp

from pointsman_cli.words import CommandError
from pointsman_core.config import AUTO, Config, EngineTls, Pool, SchedulingProfile
from pointsman_core.engine_url import check_engine_url
from pointsman_core.worker_name import worker_name
from pointsman_engines.client import EngineClient, EngineFailed, EngineHung, EngineRefused, PageUnread
from pointsman_engines.dialect import detect
from pointsman_engines.exposition import Exposition, UnreadableMetrics
from pointsman_engines.models import UnreadableModels, served_models

_TIMEOUT_S: Final = 5.0


@dataclass(frozen=True)
class EngineModels:
    """The models of one engine, from its `/v1/models`."""

    url: str
    models: tuple[str, ...]
    loras: tuple[str, ...]
    opaque: bool = False
    """Whether it has no metrics, or none of a known engine."""

    @property
    def name(self) -> str:
        """The worker's name."""
        return worker_name(self.url)


def engine_tls(ca: str | None, server_name: str | None) -> EngineTls | None:
    """The settings for these options; None without any. CommandError for a file that isn't there."""
    if ca is None and server_name is None:
        return None
    if ca is not None and not Path(ca).is_file():
        raise CommandError(f"{ca} isn't a file.", "Name a PEM file with the authorities of the engines' certificates.")
    # Services may run in another folder.
    return EngineTls(ca=None if ca is None else str(Path(ca).resolve()), server_name=server_name)


async def ask(
    urls: Iterable[str], http: aiohttp.ClientSession, api_key: str | None, tls: EngineTls | None = None
) -> list[EngineModels]:
    """Ask every engine. CommandError names the first that can't be asked, and why."""
    clients = [EngineClient(base(url), api_key=api_key, session=http, tls=tls) for url in urls]
    try:
        return list(await asyncio.gather(*map(_ask_engine, clients)))
    finally:
        for client in clients:
            await client.close()


async def ask_models(url: str, http: aiohttp.ClientSession, api_key: str | None = None) -> EngineModels:
    """The models listed at the URL. Raises CommandError with the reason when they can't be read."""
    client = EngineClient(url, api_key=api_key, session=http)
    try:
        return await _models(client)
    finally:
        await client.close()


def configuration(engines: Sequence[EngineModels], tls: EngineTls | None = None) -> dict[str, object]:
    """A configuration for these engines: one pool for those that have a model in common, and `auto`, for which the
    model-selector chooses one of the models; everything else has its default. An agent can't speak for an opaque
    engine, so a pool with one lists its engines."""
    pools: dict[str, object] = {}
    uneven = False
    for members in _related(engines):
        models = sorted({model for engine in members for model in engine.models})
        loras = sorted({lora for engine in members for lora in engine.loras})
        pool: dict[str, object] = {"models": [*models, *loras]}
        if loras:
            pool["loras"] = loras
        if any(engine.opaque for engine in members):
            pool["discovery"] = "static"
            pool["engines"] = [listed(engine) for engine in members]
        if tls is not None:
            pool["tls"] = tls.model_dump(exclude_defaults=True)
        pools[models[0]] = pool
        uneven = uneven or any(set(engine.models) != set(models) for engine in members)
    document: dict[str, object] = {"pools": pools, **_auto(engines)}
    if uneven:
        filters = [*(use.use for use in SchedulingProfile().filters), "serves"]
        document["scheduling"] = {"default": {"filters": filters}}
    return document


def _auto(engines: Sequence[EngineModels]) -> dict[str, object]:
    """The sections that make `auto` a model: a profile whose stage chooses among all models but adapters."""
    models = sorted({name for each in engines for name in each.models})
    among = {"models": models} if any(each.loras for each in engines) else {}
    return {
        "profile-picker": {
            "use": "rules",
            "rules": [{"when": f'model == "{AUTO}"', "profile": AUTO}],
            "default": "standard",
        },
        "profiles": {"standard": {"request": ["scheduler"]}, AUTO: {"request": ["model-selector/any", "scheduler"]}},
        "selectors": {"any": among},
    }


def pool_of(engine: EngineModels, config: Config) -> str | None:
    """The pool that the engine's agent joins: the one with most of its models. None: a pool lists the engine.
    CommandError names the models of both sides."""
    if any(each.url.rstrip("/") == engine.url for pool in config.pools.values() for each in pool.engines):
        return None
    common = {name: len(set(engine.models) & set(pool.models)) for name, pool in config.pools.items()}
    joined = [name for name, pool in config.pools.items() if pool.discovery == "agents" and common[name]]
    if not joined:
        wanted = "; ".join(f"{name}: {_wanted(pool)}" for name, pool in config.pools.items()) or "none"
        raise CommandError(
            f"{engine.url} serves {', '.join(engine.models)}, but can't join any pool of the configuration ({wanted}).",
            "Add the model to a pool with `discovery: agents`, or leave --config out and let the configuration follow"
            " from the engines.",
        )
    if engine.opaque:
        raise CommandError(
            f"{engine.url} has no metrics of an engine that an agent could read.",
            "List it in a pool with `discovery: static` and `engine: opaque`, or leave --config out.",
        )
    return max(joined, key=common.__getitem__)


def _related(engines: Sequence[EngineModels]) -> list[list[EngineModels]]:
    """Groups of engines; a model of one group is in no other."""
    groups: list[tuple[set[str], list[EngineModels]]] = []
    for engine in engines:
        models, members = set(engine.models), [engine]
        for group in [group for group in groups if group[0] & models]:
            groups.remove(group)
            models, members = models | group[0], [*group[1], *members]
        groups.append((models, members))
    return [members for _, members in groups]


def listed(engine: EngineModels) -> dict[str, object]:
    """The entry of an engine in a pool's `engines`."""
    return {"url": engine.url, **({"engine": "opaque", "health": "/v1/models"} if engine.opaque else {})}


def _wanted(pool: Pool) -> str:
    models = ", ".join(pool.models) or "whatever its engines serve"
    return models if pool.discovery == "agents" else f"{models}, by `discovery: {pool.discovery}`"


async def _ask_engine(client: EngineClient) -> EngineModels:
    served = await _models(client)
    try:
        known = detect(Exposition(await client.metrics(timeout=_TIMEOUT_S))) is not None
    except (EngineHung, EngineRefused) as error:
        raise CommandError(f"{client.url} can't be asked for its metrics: {error}.") from error
    except (PageUnread, UnreadableMetrics):
        known = False
    return replace(served, opaque=not known)


def base(url: str) -> str:
    """The URL without what clients' base URLs end with. CommandError when it is none."""
    url = url.strip()  # it may come from a file
    try:
        check_engine_url(url)
    except ValueError as error:
        advice = "Write it as http://127.0.0.1:8000, or unix:/run/vllm.sock."
        raise CommandError(f"{url!r} isn't the URL of an engine.", advice) from error
    return url.rstrip("/").removesuffix("/v1")


async def _models(client: EngineClient) -> EngineModels:
    try:
        served = served_models(await client.models(timeout=_TIMEOUT_S))
    except EngineFailed as error:
        if error.status in (401, 403):
            raise CommandError(
                f"{client.url}/v1/models wants a key (HTTP {error.status}).",
                "Put it into an environment variable and name that with --engine-key env:NAME.",
            ) from error
        raise CommandError(
            f"{client.url}/v1/models answers HTTP {error.status}.",
            "Give the base URL of an engine, e.g. http://127.0.0.1:8000.",
        ) from error
    except PageUnread as error:
        raise CommandError(
            f"{client.url} can't be asked for its models: {error}.",
            "Start an engine there, or give the base URL of a running one, e.g. http://127.0.0.1:8000.",
        ) from error
    except UnreadableModels as error:
        raise CommandError(f"{client.url}/v1/models doesn't answer like an OpenAI-compatible engine.") from error
    if not served.models:
        raise CommandError(f"{client.url}/v1/models lists no model; an engine that serves one is needed.")
    return EngineModels(client.url, served.models, served.loras)
