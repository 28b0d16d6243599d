"""`/v1/completions`. Each prompt is a text or a list of token ids."""

from typing import Final, cast

from pointsman_apis import fields as f
from pointsman_apis.api import Api, View
from pointsman_apis.chat import choice_slots
from pointsman_apis.choices import SAMPLING, ChoicesEnd, finish_reasons
from pointsman_apis.fields import Document


def _view(document: Document, media: list[str]) -> View:
    del media
    get = document.get
    prompts: list[str | list[int]]
    if get("prompt_embeds") is not None and not get("prompt"):
        # vLLM needs no prompt beside `prompt_embeds`; apart from that neither it nor SGLang takes an empty one.
        prompts = [""]
    elif get("prompt") == "":
        raise f.empty("prompt", f.TEXTS_OR_TOKENS)
    else:
        prompts = f.texts_or_tokens(document, "prompt")
    each = max(cast("int", get("n") or 1), cast("int", get("best_of") or 1))
    return View(prompts=prompts, answers=each * len(prompts))


COMPLETIONS: Final = Api(
    name="completions",
    path="/v1/completions",
    fields={
        **SAMPLING,
        "prompt": f.TEXT_OR_LIST,
        "suffix": f.TEXT,
        "best_of": f.POSITIVE,
        "echo": f.FLAG,
        "logprobs": f.ALTERNATIVES,
    },
    view=_view,
    in_prompt=frozenset({"prompt"}),
    output_limits=("max_tokens",),
    template="text",
    usage_option=True,
    slots=choice_slots,
    end=lambda: ChoicesEnd({"text": ""}),
    conversation="prompt",
    ends=finish_reasons,
    complete=frozenset({"stop"}),
    last_data=b"[DONE]",
)
