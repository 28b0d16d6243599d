"""Chooses the prompts whose tokens are sent to the edge, so that the edge doesn't tokenize them again."""

from typing import Final

from pointsman_contracts.content import PromptTokens
from pointsman_core.config import Config
from pointsman_plugins.preprocessing import Incoming
from pointsman_plugins.prompt import BYTES_PER_TOKEN, Prompt

ROUTING_REQUEST: Final = "x-routing-request"
"""Only the route is requested; tokens are part of that answer."""


class TokenReaders:
    """The services that need tokens, by one configuration revision."""

    def __init__(self, config: Config) -> None:
        self._pools: Final = {name: pool.send_tokens != "no" for name, pool in config.pools.items()}
        self._any: Final = any(self._pools.values())
        self._of_model: Final = {
            name: self._pools[served.pool]
            for name in config.model_names()
            if (served := config.served(name)) is not None and served.pool is not None
        }

    def told(self, incoming: Incoming, prompt: Prompt) -> PromptTokens | None:
        """The tokens of a prompt for the edge; None when no service needs them. A request with several prompts has
        none."""
        model = incoming.model
        wanted = self._any and self._of_model.get(model, True)
        if not wanted and incoming.envelope.headers.get(ROUTING_REQUEST) is None:
            return None
        if len(prompt.stream) != prompt.tokens * BYTES_PER_TOKEN:
            return None
        return PromptTokens(request_id=incoming.envelope.request_id, model=model, ids=prompt.stream)
