"""Translates a provider's errors into OpenAI's shape, with the right status for the client."""

from collections.abc import Mapping
from typing import Final, NamedTuple, cast

from pydantic import JsonValue

from pointsman_core import lenient_json
from pointsman_core.refusal import Refusal
from pointsman_providers.error_status import NO_MODEL, NO_QUOTA, true_status
from pointsman_providers.reported_error import ProviderError, error_in, read_error

SERVER_ERROR: Final = "server_error"
CUT_OFF: Final = "engine_cut_off"
CREDENTIAL: Final = "provider_credential"
"""Code of the refusal where the provider rejects the gateway's credential."""
NO_CREDENTIAL: Final = "provider_credential_missing"
"""Code of the refusal where the gateway has none."""
QUOTA: Final = "provider_quota"
MODEL: Final = "provider_lacks_model"
FULL: Final = "provider_full"
NOT_SENT: Final = frozenset({NO_CREDENTIAL, FULL})
"""Codes of refusals of requests that the provider hasn't seen."""
OPERATORS: Final = frozenset({CREDENTIAL, NO_CREDENTIAL, QUOTA, MODEL})
"""Codes of refusals that only the gateway's operator can mend."""

_CLIENTS: Final = frozenset({400, 404, 413, 422})
"""Statuses of errors that the client can correct."""
_OF_OPERATOR: Final = {
    401: (CREDENTIAL, "rejects the gateway's credential; the gateway's operator must correct it"),
    403: (CREDENTIAL, "rejects the gateway's credential; the gateway's operator must correct it"),
    NO_QUOTA: (QUOTA, "has no credit or quota left for the gateway; the gateway's operator must renew it"),
    NO_MODEL: (MODEL, "lacks the model or the path that the gateway asks for; the gateway's operator must correct it"),
}
"""Statuses that concern the gateway: a client that got them would suspect its own key or its model's name."""
_TOLD: Final = frozenset({*_OF_OPERATOR, 429})
_AWS_KIND: Final = "x-amzn-errortype"
"""AWS's name of an error may be in this header alone, with a URL behind it."""
_LATE: Final = frozenset({408, 504})


class BrokenAnswer(Exception):
    """The provider stopped within its answer, or sent what isn't one. The message has no content of the answer.

    `error` is the error that the provider sent in place of an answer, or of its rest.
    """

    def __init__(self, detail: str, error: ProviderError | None = None) -> None:
        super().__init__(detail)
        self.error = error


class AnswerDocument(NamedTuple):
    """A JSON object of an answer, and whether orjson writes it as it came."""

    fields: dict[str, JsonValue]
    strict: bool


def document(body: bytes, *, begun: bool = False) -> AnswerDocument:
    """The body of a provider's answer, or the data of an event, read as clients read it. Raises BrokenAnswer when it
    isn't a JSON object, or is an error. `begun`: the API's own last event of a response that failed passes."""
    try:
        value, strict = lenient_json.read(body)
    except ValueError:
        raise BrokenAnswer("not JSON") from None
    error = error_in(value)
    if error is not None and not (begun and isinstance(value, dict) and "response" in value):
        raise BrokenAnswer(f"an error in place of an answer: {error.kind or error.status}", error)
    if not isinstance(value, dict):
        raise BrokenAnswer("not a JSON object")
    return AnswerDocument(cast("dict[str, JsonValue]", value), strict)


def no_answer(fields: Mapping[str, JsonValue], lacks: str) -> BrokenAnswer:
    """For a document without the member that every answer of its API has."""
    error = read_error(fields)
    return BrokenAnswer(f"a document without `{lacks}`", error if error.message else None)


def is_clients(status: int) -> bool:
    """Whether an answer with this status is about the request itself, so that no other provider is asked."""
    return status in _CLIENTS


def attempt_outcome(status: int) -> str:
    """Like `Attempt.outcome`, of one that was answered with this status, which isn't 2xx."""
    return "limited" if status in (429, 529) else "timeout" if status in _LATE else "failed"


def standing_status(status: int | None) -> int:
    """The status to tell while a provider isn't asked because of an answer with `status`; None: it gave none."""
    return status if status in _TOLD else 503


def answered_error(status: int, headers: Mapping[str, str], body: bytes) -> ProviderError:
    """The error that an answer with this status is, with the status of what is at fault. `headers`: by lower-case
    name."""
    try:
        value, _ = lenient_json.read(body)
    except ValueError:
        value = None
    error = read_error(value, status)
    message = error.message or ("" if value is not None or b"<" in body else body.decode("utf-8", "replace"))
    true = true_status(status, (*error.kinds, headers.get(_AWS_KIND, "").partition(":")[0]), message)
    if (status, true) == (403, 400):
        # Its own words may name the account and its keys.
        text = "The provider refuses the content of this request."
        kind = "content_policy_violation"
        return error._replace(status=true, kind=kind, type="invalid_request_error", message=text, param=None, more={})
    return error._replace(status=true)


def explained(provider: str, status: int, retry_after_s: float | None = None) -> Refusal:
    """The client's error for a provider's error with this status. `retry_after_s`: the pause that the provider asks
    for."""
    if status in _OF_OPERATOR:
        code, words = _OF_OPERATOR[status]
        return Refusal(502, f"The provider '{provider}' {words}.", type=SERVER_ERROR, code=code)
    if status == 429:
        return Refusal(
            429,
            f"The provider '{provider}' accepts no more requests at the moment; try again later.",
            type="rate_limit_error",
            code="rate_limit_exceeded",
            retry_after_s=retry_after_s or 1.0,
        )
    if status in _LATE:
        return Refusal(
            504, f"The provider '{provider}' did not answer in time.", type=SERVER_ERROR, code="provider_timeout"
        )
    if status in (503, 529):
        return Refusal(
            503,
            f"The provider '{provider}' is overloaded.",
            type=SERVER_ERROR,
            code="provider_unavailable",
            retry_after_s=retry_after_s or 1.0,
        )
    return Refusal(
        502, f"The provider '{provider}' failed with status {status}.", type=SERVER_ERROR, code="provider_failed"
    )


def explained_answer(provider: str, error: ProviderError, retry_after_s: float | None) -> Refusal:
    """The client's error for an answer with a status of an error."""
    return _refused(provider, error) if error.status in _CLIENTS else explained(provider, error.status, retry_after_s)


def explained_error(provider: str, error: ProviderError, retry_after_s: float | None = None) -> Refusal:
    """The client's error for an error that came without a status of its own. It keeps the name that the provider gave
    it."""
    refusal = explained_answer(provider, error, retry_after_s)
    if error.status not in _CLIENTS and refusal.code not in OPERATORS:
        refusal.code = error.kind or refusal.code
    return refusal


def _refused(provider: str, error: ProviderError) -> Refusal:
    detail = f"The provider '{provider}' refused the request with status {error.status}."
    return Refusal(
        error.status,
        error.message or detail,
        type=error.type,
        code=error.kind or "provider_refused",
        param=error.param,
        detail=detail,
        more=error.more,
    )


def without_credential(provider: str) -> Refusal:
    """The client's error where the reference to the provider's credential leads to nothing: it wasn't asked."""
    return Refusal(
        502,
        f"The gateway has no credential for the provider '{provider}'; the gateway's operator must set it.",
        type=SERVER_ERROR,
        code=NO_CREDENTIAL,
    )


def without_connection(provider: str) -> Refusal:
    """The client's error where all `connections` to the provider are in use: it wasn't asked."""
    return Refusal(
        503,
        f"The gateway has as many requests at the provider '{provider}' as it may have; try again shortly.",
        type=SERVER_ERROR,
        code=FULL,
        retry_after_s=1.0,
    )


def cut_off(provider: str, error: ProviderError | None) -> Refusal:
    """The client's error where the provider stopped within its answer."""
    if error is not None:
        return explained_error(provider, error)
    message = f"The provider '{provider}' stopped before its answer was complete."
    return Refusal(502, message, type=SERVER_ERROR, code=CUT_OFF)
