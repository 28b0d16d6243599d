"""`answer-blocks`: names the blocks of the KV cache that an answer fills, so that the scheduler knows them.

An engine keeps the KV cache of its answer too. Without its events the index knows the prompts that an engine was sent:
the next turn of a conversation would match up to the last prompt, and the answer between the two would count as not
computed. The names of the answer's blocks continue those of the prompt, from

- the token ids that the engine returns (vLLM's `return_token_ids`), where the prompt was tokenised too,
- otherwise the answer's text, cut into tokens by the pool's tokenizer, with `tokenize`,
- the answer's text as the next turn repeats it, where the pool has no tokenizer.

Where the engine's count of tokens contradicts what was read, nothing is named.
"""

import re
from array import array
from typing import Final

from pointsman_apis import named
from pointsman_apis.answers import slots_of
from pointsman_apis.api import Api
from pointsman_apis.chat import CHAT
from pointsman_apis.completions import COMPLETIONS
from pointsman_apis.streams import EventSplitter, lenient_document
from pointsman_contracts.content import LastBlock, PromptEnd
from pointsman_contracts.response import Usage
from pointsman_core.config import ANSWER_BLOCKS, Config
from pointsman_core.model_tokenizer import tokenizer_of
from pointsman_core.plugins import PluginError
from pointsman_core.settled_target import salted
from pointsman_edge.answer_plugins.text_tokens import TextTokens, read_text_tokens
from pointsman_plugins import Params
from pointsman_plugins.prompt import BYTES_PER_TOKEN, chain, next_message
from pointsman_plugins.responding import AnswerEnd, AnswerFollower, AnswerHead, ResponseProcessor

LONGEST: Final = 2**24
"""Bytes of an answer that is read; a longer one is left out."""
_READ: Final = (CHAT.name, COMPLETIONS.name)
_IDS: Final = re.compile(rb'"token_ids"\s*:\s*\[([\d,\s]*)\]')
"""Can't be part of a text: a quote inside a JSON string is written `\\"`. The prompt's are `prompt_token_ids`."""
_ERROR: Final = 400


class AnswerBlocksParams(Params):
    tokenize: bool = False
    """Cut the text of answers into tokens where the engine returns no token ids, by the tokenizer of the model's pool.
    It is loaded into the edge's process, and takes about 1 ms for 1,000 tokens of an answer."""


class AnswerBlocks(ResponseProcessor[AnswerBlocksParams]):
    """Follows whole answers to one prompt of chats and completions."""

    type_name = ANSWER_BLOCKS
    reads_token_ids = True

    def setup(self) -> None:
        self._tokenizers: dict[str, TextTokens] = {}
        self._otherwise: TextTokens | None = None
        """For a model that the configuration doesn't name, e.g. `auto`."""

    def check_config(self, config: Config) -> None:
        if not self.params.tokenize:
            return
        for name in config.model_names():
            section, path = tokenizer_of(config, name)
            if section is not None:
                try:
                    self._tokenizers[name] = read_text_tokens(section.path)
                except (OSError, ValueError) as error:
                    raise PluginError(f"{self.name!r} needs {path}, which can't be used: {error}") from error

        if len(set(self._tokenizers.values())) == 1:
            self._otherwise = next(iter(self._tokenizers.values()))

    def begin_answer(self, head: AnswerHead) -> AnswerFollower | None:
        end = head.end
        if end is None or head.status >= _ERROR or head.answers > 1 or head.api not in _READ:
            return None
        last = next((each for each in end.ends if each.block_tokens == head.block_tokens), None)
        if last is None:
            return None
        return _Following(head, end, last, self._tokenizers.get(end.model, self._otherwise))


class _Following(AnswerFollower):
    """One answer."""

    def __init__(self, head: AnswerHead, end: PromptEnd, last: LastBlock, tokens: TextTokens | None) -> None:
        self._head = head
        self._end = end
        self._last = last
        self._tokens = tokens
        self._pieces: list[bytes] = []
        self._size = 0

    def take_segment(self, data: bytes) -> None:
        self._size += len(data)
        if self._size <= LONGEST:
            self._pieces.append(data)
        else:
            self._pieces.clear()

    def end_answer(self, end: AnswerEnd) -> None:
        if end.outcome != "ok" or self._size > LONGEST:
            return
        answer = b"".join(self._pieces)
        continued = self._tokens_of(answer, end.usage) if self._end.exact else self._text_of(answer)
        if continued:
            last, target = self._last, self._head.target
            parent = int.from_bytes(last.parent, "little")
            blocks = chain(last.rest + continued, last.block_tokens * BYTES_PER_TOKEN, parent)
            end.blocks = salted(blocks, target.model, target.lora or "")

    def _tokens_of(self, answer: bytes, usage: Usage | None) -> bytes | None:
        """The tokens of the answer that the engine has computed. It computes a token when the next one follows."""
        if usage is None or usage.estimated or usage.prompt_tokens != self._end.tokens:
            return None
        ids = ids_in_answer(answer)
        if ids:
            return ids[:-1].tobytes() if len(ids) == usage.completion_tokens else None
        if self._tokens is None:
            return None
        text = self._text(answer)
        if text is None:
            return None
        cut = self._tokens(text)
        # The token that ends the answer is no part of its text.
        if usage.completion_tokens - len(cut) // BYTES_PER_TOKEN not in (0, 1):
            return None
        return cut[: (usage.completion_tokens - 1) * BYTES_PER_TOKEN]

    def _text_of(self, answer: bytes) -> bytes | None:
        """The text of the answer as the next turn's prompt has it."""
        text = self._text(answer)
        if text is None:
            return None
        return text.encode() if self._head.api == COMPLETIONS.name else next_message("assistant", text)

    def _text(self, answer: bytes) -> str | None:
        return text_alone(named(self._head.api), answer, stream=self._head.stream)


def ids_in_answer(answer: bytes) -> "array[int]":
    """The token ids of a whole answer with one choice; none where there are none."""
    found = array("I")
    for each in _IDS.findall(answer):
        found.extend(map(int, filter(None, bytes(each).replace(b" ", b"").split(b","))))
    return found


def text_alone(api: Api, answer: bytes, *, stream: bool) -> str | None:
    """The text of a whole answer; None where it has anything else: a thought or a tool call, which the next turn's
    prompt doesn't repeat as the engine wrote it."""
    documents: list[dict[str, object]] = []
    if stream:
        splitter = EventSplitter()
        for event in splitter.split_one_by_one(answer, last=True):
            document = lenient_document(event.data) if event.data else None
            if document is not None:
                documents.append(document)
    else:
        document = lenient_document(answer)
        if document is None:
            return None
        documents.append(document)
    slots = [slot for each in documents for slot in slots_of(api, each) if not slot.repeats]
    if any(slot.kind != "text" for slot in slots):
        return None
    return "".join(slot.text for slot in slots) or None
