"""The tokenizer for each model's prompts, and which prompts' tokens go to the edge, which needn't count them again."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

from pointsman_contracts.content import PromptTokens
from pointsman_contracts.message import Blob
from pointsman_core.config import Config, Tokenizer
from pointsman_core.model_tokenizer import tokenizer_of
from pointsman_models.tokenization.failure import NotTokenized
from pointsman_plugins.preprocessing import Incoming
from pointsman_plugins.prompt import BYTES_PER_TOKEN, Prompt

if TYPE_CHECKING:
    from pointsman_models.tokenization.prompt_tokenizer import PromptTokenizer


class ModelTokenizer(NamedTuple):
    """A tokenizer in use."""

    name: str
    """Its folder."""
    tokenizer: "PromptTokenizer"
    max_bytes: int
    """Options for a body whose prompt is tokenized."""

    def build_prompt(self, incoming: Incoming) -> Prompt:
        """The prompt as the engine will see it, after the processors' edits. Raises NotTokenized."""
        if len(incoming.body.raw) > self.max_bytes:
            raise NotTokenized("too_long", "the body is larger than the tokenizer's max_bytes")
        body = incoming.body
        memo = None if body.kept is None else body.kept.memo
        if body.api.template == "chat":
            stream = self.tokenizer.tokenize_chat(incoming.field, memo)
            return _of_tokens(stream, added=self.tokenizer.has_added(memo))
        if body.api.template == "messages":
            stream = self.tokenizer.tokenize_messages(incoming.field, memo)
            return _of_tokens(stream, added=self.tokenizer.has_added(memo))
        if body.api.template == "responses":
            stream = self.tokenizer.tokenize_response(incoming.field, memo)
            return _of_tokens(stream, added=self.tokenizer.has_added(memo))
        if body.api.template == "text":
            edited = incoming.field("prompt")
            if isinstance(edited, str):
                return _of_tokens(self.tokenizer.tokenize_completion(edited, incoming.field))
            prompts = body.view.prompts or []
            texts = [each for each in prompts if isinstance(each, str)]
            if len(texts) == len(prompts):
                # Prompts of one request are scheduled together; the blocks are those of the first.
                streams = [self.tokenizer.tokenize_completion(text, incoming.field) for text in texts]
                return Prompt(streams[0], sum(map(len, streams)) // BYTES_PER_TOKEN, exact=True)
        raise NotTokenized("api", f"prompts of {body.api.name} aren't tokenized here")


Load = Callable[[Tokenizer, str], ModelTokenizer]
"""Reads the tokenizer of a section; the text is the section's path, for errors."""


class ModelTokenizers:
    """The tokenizers of one configuration revision."""

    def __init__(self, config: Config, load: Load | None) -> None:
        """`load` reads one; None for no tokenizers."""
        self._of_model: Final[dict[str, ModelTokenizer | None]] = {}
        self._otherwise: ModelTokenizer | None = None
        if load is None:
            return
        pools = [(pool.tokenizer, f"pools.{name}.tokenizer") for name, pool in config.pools.items()]
        models = {name: tokenizer_of(config, name) for name in config.model_names()}
        for name, (section, path) in models.items():
            self._of_model[name] = None if section is None else load(section, path)
        sections = [*pools, *models.values()]
        for section, path in sections[:1]:
            if section is not None and all(section == other for other, _ in sections):
                self._otherwise = load(section, path)

    @property
    def has_tokenizers(self) -> bool:
        """Whether any model has one."""
        return self._otherwise is not None or any(self._of_model.values())

    def find_tokenizer(self, model: str) -> ModelTokenizer | None:
        """The model's tokenizer. For a model that the configuration doesn't name (`auto`, or one that engines report)
        the one that all models have; None when they differ."""
        return self._of_model.get(model, self._otherwise)


def _of_tokens(stream: bytes, *, added: bool = False) -> Prompt:
    return Prompt(stream, len(stream) // BYTES_PER_TOKEN, exact=True, added=added)


ROUTING_REQUEST: Final = "x-routing-request"
"""Only the route is requested; tokens are part of that answer."""


class TokenReaders:
    """The services that need tokens, by one configuration revision."""

    def __init__(self, config: Config) -> None:
        self._pools: Final = {name: pool.send_tokens != "no" for name, pool in config.pools.items()}
        self._any: Final = any(self._pools.values())
        self._of_model: Final = {
            name: self._pools[target.pool]
            for name in config.model_names()
            if (target := config.find_target(name)) is not None and target.pool is not None
        }

    def tokens_for_edge(self, incoming: Incoming, prompt: Prompt) -> PromptTokens | None:
        """The tokens of a prompt; None when the edge needs none, or for a request with several prompts."""
        model = incoming.model
        wanted = self._any and self._of_model.get(model, True)
        if not wanted and incoming.envelope.headers.get(ROUTING_REQUEST) is None:
            return None
        if len(prompt.stream) != prompt.tokens * BYTES_PER_TOKEN:
            return None
        return PromptTokens(request_id=incoming.envelope.request_id, model=model, ids=Blob(prompt.stream))
