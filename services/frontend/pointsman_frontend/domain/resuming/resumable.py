"""Which streams can be continued."""

import re
from typing import Final, Literal

from pointsman_apis.api import Api
from pointsman_apis.completions import COMPLETIONS
from pointsman_apis.token_ids import FIELD
from pointsman_contracts.reply import TokenIds
from pointsman_frontend.domain.resuming.as_chat import TRANSLATED
from pointsman_frontend.domain.resuming.kept_events import KeptChoices, KeptTokens, StreamKeeper
from pointsman_frontend.domain.resuming.question import APIS
from pointsman_frontend.domain.resuming.resuming import EXACT_KIND, TEXT_KINDS, Resuming
from pointsman_frontend.domain.resuming.translated_resuming import TranslatedResuming

Setting = Literal["off", "exact", "text"]
_STREAM: Final = re.compile(rb'"stream"\s*:\s*true\b')
"""Can't be part of a prompt: a quote inside a JSON string is written `\\"`."""
_ECHO: Final = re.compile(rb'"echo"\s*:\s*true\b')
_FIELD: Final = b'"%b"' % FIELD.encode()


def token_ids_of(api: Api, body: bytes) -> TokenIds:
    """`Decision.token_ids` of a request, by its body."""
    if api not in APIS or not _STREAM.search(body):
        return "never"
    if _FIELD in body:
        return "asked"
    return "never" if _ECHO.search(body) else "unasked"


def resuming_of(
    api: Api,
    body: bytes,
    setting: Setting,
    attempts: int,
    kind: str,
    ids: TokenIds,
    *,
    one: bool,
    thinking_end: str | None = None,
) -> Resuming | None:
    """For a request with this body, before an engine of this kind gets it; None where it isn't for a stream, or its
    stream can't be continued. `one`: its answer has one choice. `thinking_end`: the mark behind the thoughts."""
    if setting == "exact" and (kind != EXACT_KIND or ids == "never"):
        return None
    if setting == "off" or not (setting == "exact" or _STREAM.search(body)):
        return None
    if api in TRANSLATED:
        return TranslatedResuming(api, attempts, thinking_end) if kind in TEXT_KINDS else None
    if api not in APIS or not (api is COMPLETIONS or kind in TEXT_KINDS):
        return None
    asks_ids = kind == EXACT_KIND and ids == "unasked"
    keeps_text = setting == "text"
    kept: StreamKeeper
    if one and not keeps_text:
        kept = KeptTokens(hides=asks_ids, thinking_end=thinking_end)
    else:
        kept = KeptChoices(one=one, keeps_text=keeps_text, hides=asks_ids, thinking_end=thinking_end)
    return Resuming(api, attempts, kept=kept, asks_ids=asks_ids, keeps_text=keeps_text, thinking_end=thinking_end)
