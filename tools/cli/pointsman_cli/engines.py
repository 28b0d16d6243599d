"""What engines say they serve, and the pools that follow from it."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast
from urllib.parse import urlsplit

import aiohttp

from pointsman_cli.words import CommandError
from pointsman_core.config import Config

_TIMEOUT = aiohttp.ClientTimeout(total=5.0)


@dataclass(frozen=True)
class Served:
    """What one engine serves, by its `/v1/models`."""

    url: str
    models: tuple[str, ...]
    loras: tuple[str, ...]

    @property
    def name(self) -> str:
        """Host and port: the worker's name."""
        parts = urlsplit(self.url)
        return f"{parts.hostname}:{parts.port}" if parts.port else str(parts.hostname)


def read_models(url: str, document: object) -> Served:
    """Take an answer of `/v1/models` apart. A card with a `parent` is an adapter, as vLLM and SGLang write it."""
    cards = cast("Mapping[str, object]", document).get("data") if isinstance(document, dict) else None
    if not isinstance(cards, list):
        raise CommandError(f"{url}/v1/models doesn't answer like an OpenAI-compatible engine: no `data` list.")
    models: list[str] = []
    loras: list[str] = []
    for card in cast("list[object]", cards):
        if isinstance(card, dict) and isinstance(name := cast("dict[str, object]", card).get("id"), str):
            (loras if cast("dict[str, object]", card).get("parent") else models).append(name)
    if not models:
        raise CommandError(f"{url}/v1/models lists no model; an engine that serves one is needed.")
    return Served(url, tuple(models), tuple(loras))


async def ask(urls: Iterable[str], http: aiohttp.ClientSession, api_key: str | None) -> list[Served]:
    """Ask every engine. CommandError names the first that can't be asked, and why."""
    return list(await asyncio.gather(*(_ask(url.rstrip("/").removesuffix("/v1"), http, api_key) for url in urls)))


def configuration(engines: Sequence[Served]) -> dict[str, object]:
    """A configuration for these engines: one pool for each set of models; everything else has its default."""
    pools: dict[str, object] = {}
    for models, members in _by_models(engines).items():
        loras = sorted({lora for engine in members for lora in engine.loras})
        pools[models[0]] = {"models": [*models, *loras], **({"loras": loras} if loras else {})}
    return {"pools": pools}


def pool_of(engine: Served, config: Config) -> str:
    """The pool whose models the engine serves. CommandError names the models of both sides."""
    for name, pool in config.pools.items():
        if pool.discovery == "agents" and set(engine.models) & set(pool.models):
            return name
    wanted = "; ".join(f"{name}: {', '.join(pool.models)}" for name, pool in config.pools.items())
    raise CommandError(
        f"{engine.url} serves {', '.join(engine.models)}, which no pool of the configuration has ({wanted or 'none'}).",
        "Add the model to a pool, or leave --config out and let the configuration follow from the engines.",
    )


def _by_models(engines: Sequence[Served]) -> dict[tuple[str, ...], list[Served]]:
    found: dict[tuple[str, ...], list[Served]] = {}
    for engine in engines:
        found.setdefault(tuple(sorted(engine.models)), []).append(engine)
    return found


async def _ask(url: str, http: aiohttp.ClientSession, api_key: str | None) -> Served:
    headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
    try:
        async with http.get(f"{url}/v1/models", headers=headers, timeout=_TIMEOUT) as answer:
            if answer.status in (401, 403):
                raise CommandError(
                    f"{url}/v1/models wants a key (HTTP {answer.status}).",
                    "Put it into an environment variable and name that with --engine-key env:NAME.",
                )
            if answer.status != 200:
                raise CommandError(f"{url}/v1/models answers HTTP {answer.status}; an engine's base URL is needed.")
            return read_models(url, cast("object", await answer.json(content_type=None)))
    except TimeoutError as error:
        raise CommandError(f"{url} doesn't answer within 5 s.", "Is the engine running there?") from error
    except (aiohttp.ClientError, ValueError) as error:
        raise CommandError(f"{url} can't be asked for its models: {error}", "Is the engine running there?") from error
