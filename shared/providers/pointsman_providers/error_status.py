"""The status that says what is at fault, where a provider's own says something else.

Providers report an empty account, a wrong key and a missing model as errors of the request (CLIProxyAPI #3859, oh-my-pi
#449, litellm #3884), and refused content as a wrong key (llmgateway #1785).
"""

import re
from collections.abc import Sequence
from typing import Final

NO_QUOTA: Final = 402
"""The gateway's account has no credit or quota left."""
NO_MODEL: Final = 410
"""The provider lacks the model, or the path, that the gateway asks for. 404: something that the client named."""
_STATUSES: Final = (
    # Of OpenAI (https://platform.openai.com/docs/guides/error-codes), Anthropic
    # (https://docs.anthropic.com/en/api/errors), Google (https://cloud.google.com/apis/design/errors) and AWS
    # (https://docs.aws.amazon.com/bedrock/latest/APIReference/API_runtime_ConverseStream.html), in lower case without
    # marks.
    (NO_QUOTA, ("billing", "insufficientquota", "insufficientbalance", "insufficientcredit", "currentquota")),
    (429, ("ratelimit", "throttling", "resourceexhausted", "toomanyrequests", "quotaexceeded")),
    (503, ("overloaded", "unavailable", "capacity", "modelnotready")),
    (504, ("timeout", "deadlineexceeded")),
    (401, ("authentication", "unauthenticated", "invalidapikey", "apikeyinvalid", "unrecognizedclient")),
    # Of Google: the account's country, or its billing, doesn't allow the API.
    (403, ("permission", "accessdenied", "forbidden", "failedprecondition")),
    (NO_MODEL, ("modelnotfound", "invalidmodel", "modelnotexist", "modelnotavailable", "deploymentnotfound")),
    (404, ("notfound", "unknownoperation")),
    (413, ("toolarge",)),
    (400, ("invalidrequest", "badrequest", "validation", "invalidargument", "contextlength")),
    (400, ("contentfilter", "contentpolicy", "unsupported", "outofrange", "invalidprompt", "malformed")),
)
"""Status, and parts of the kinds of errors that have it."""
_DOUBTFUL: Final = frozenset({400, 403, 404, 422, 429})
_NOT_THE_REQUEST: Final = frozenset({401, NO_QUOTA, 403, NO_MODEL, 429, 503, 504})
_MARKS: Final = re.compile(r"[^a-z]")
_QUOTED: Final = re.compile(r"`[^`]*`|'[^']*'|\"[^\"]*\"")
"""May be the request's own words."""
_CREDIT: Final = re.compile(
    r"credit balance|(?:insufficient|not enough) (?:account )?(?:balance|credit|funds|quota)|available credits"
    r"|spending limit",
    re.IGNORECASE,
)
_KEY: Final = re.compile(
    r"(?:invalid|incorrect|expired) (?:x-)?api.key|api.key (?:is )?(?:not valid|invalid|not found|expired)",
    re.IGNORECASE,
)
_MODEL: Final = re.compile(
    r"(?:model|deployment)\b[^.]{0,80}\b(?:not exist|not found|no longer|deprecated|decommissioned|end of its life)"
    r"|(?:invalid|unknown|no such) model\b|not a valid model|model identifier is invalid|no endpoints found",
    re.IGNORECASE,
)
_CONTENT: Final = re.compile(r"moderation|flagged|violat|usage guidelines|content policy|safety", re.IGNORECASE)
_NAMES_MODEL: Final = re.compile(r"model|deployment|adapter", re.IGNORECASE)
_NO_PATH: Final = re.compile(
    r"(?:404:?)?\s*(?:the )?(?:(?:requested )?(?:page|file|path|route|resource|url)\b.*)?\s*(?:(?:was )?not found)?\.?"
    r"|(?:invalid|unknown) (?:url|path)\b.*",
    re.IGNORECASE,
)


def status_of(kind: str) -> int | None:
    """The HTTP status of errors of this kind; None where it isn't known."""
    plain = _MARKS.sub("", kind.lower())
    return next((status for status, parts in _STATUSES if any(part in plain for part in parts)), None)


def true_status(status: int, kinds: Sequence[str], message: str) -> int:
    """The status of what is at fault in an error that came with `status`. `kinds`: its type, code and reasons."""
    if status not in _DOUBTFUL:
        return status
    told = {known for kind in kinds if (known := status_of(kind)) is not None}
    words = _QUOTED.sub("", message)
    if status == 429:
        return NO_QUOTA if NO_QUOTA in told or _CREDIT.search(words) else status
    other = next((known for known in sorted(told) if known in _NOT_THE_REQUEST and known != status), None)
    if other is not None and not (status == 403 and other == 401):
        return other
    if _CREDIT.search(words):
        return NO_QUOTA
    if status == 403:
        return 400 if 400 in told or _CONTENT.search(words) else status
    if _KEY.search(words):
        return 401
    if _MODEL.search(words):
        return NO_MODEL
    if status == 404 and (_NAMES_MODEL.search(f"{message} {' '.join(kinds)}") or _NO_PATH.fullmatch(words.strip())):
        return NO_MODEL
    return status
