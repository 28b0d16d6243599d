"""Which prompts' tokens the edge is told, so that nobody has to count them again (S1-26, S1-27)."""

from typing import Final

from pointsman_contracts.content import PromptTokens
from pointsman_core.config import Config
from pointsman_plugins.preprocessing import Incoming
from pointsman_plugins.prompt import BYTES_PER_TOKEN, Prompt

ROUTING_REQUEST: Final = "x-routing-request"
"""Only the route is asked for; tokens are part of that answer."""


class TokenReaders:
    """Who wants tokens, by one configuration revision."""

    def __init__(self, config: Config) -> None:
        self._pools: Final = {name: pool.send_tokens != "no" for name, pool in config.pools.items()}
        self._any: Final = any(self._pools.values())
        self._of_model: Final = {
            name: self._pools[served.pool]
            for name in config.model_names()
            if (served := config.served(name)) is not None and served.pool is not None
        }

    def told(self, incoming: Incoming, prompt: Prompt) -> PromptTokens | None:
        """What the edge is told of a prompt that was tokenized; None: nobody wants it. Of several prompts in one
        request nothing is told."""
        model = incoming.model
        wanted = self._any and self._of_model.get(model, True)
        if not wanted and incoming.envelope.headers.get(ROUTING_REQUEST) is None:
            return None
        if len(prompt.stream) != prompt.tokens * BYTES_PER_TOKEN:
            return None
        return PromptTokens(request_id=incoming.envelope.request_id, model=model, ids=prompt.stream)
