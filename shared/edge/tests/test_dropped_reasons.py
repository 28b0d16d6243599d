"""Why a request was dropped, in the headers of its error."""

import pytest

from pointsman_apis.errors import error_headers
from pointsman_contracts.message import read_fields
from pointsman_contracts.reply import STAGE_UNAVAILABLE, Rejection
from pointsman_core.refusal import Refusal
from pointsman_edge.deciding.decider import refusal_of
from pointsman_edge.deciding.static_choice import Closed, NoEndpoints, outside_subset


def rejection(**facts: object) -> Rejection:
    fields: dict[str, object] = {"request_id": "r", "stage": "guard", "status": 403, "message": "no", "type": "t"}
    return read_fields(Rejection, fields | facts)


@pytest.mark.parametrize(
    ("refusal", "reason"),
    [
        (refusal_of(rejection()), "rejected-by-guard"),
        (refusal_of(rejection(status=429, stage="preprocessor")), "rejected-by-preprocessor"),
        (refusal_of(rejection(status=503, code=STAGE_UNAVAILABLE)), "rejected-unavailable"),
        (refusal_of(rejection(status=429, dropped_reason="rejected-saturated")), "rejected-saturated"),
        (Closed("no decision"), "rejected-unavailable"),
        (Closed("too late", dropped_reason="rejected-deadline-exceeded"), "rejected-deadline-exceeded"),
        (NoEndpoints("none"), "rejected-no-endpoints"),
        (outside_subset(), "rejected-no-endpoints"),
    ],
)
def test_whatever_rejects_a_request_says_why_in_headers_that_clients_of_either_picker_read(
    refusal: Refusal, reason: str
) -> None:
    headers = dict(error_headers(refusal))
    assert headers[b"x-pointsman-dropped-reason"] == headers[b"x-llm-d-request-dropped-reason"] == reason.encode()


def test_an_engines_failure_is_no_rejection() -> None:
    assert error_headers(Refusal(502, "It failed.", code="engine_failed")) == []
