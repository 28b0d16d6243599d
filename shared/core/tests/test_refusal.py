"""The defaults of a refusal."""

import pytest

from pointsman_core.refusal import Refusal


@pytest.mark.parametrize(
    ("status", "kind", "code"),
    [
        (400, "invalid_request_error", None),
        (401, "invalid_request_error", "unauthorized"),
        (403, "permission_error", "forbidden"),
        (429, "rate_limit_error", "rate_limit_exceeded"),
        (500, "server_error", "internal_error"),
        (503, "server_error", "unavailable"),
        (529, "server_error", None),
    ],
)
def test_a_refusal_has_type_and_code_of_its_status(status: int, kind: str, code: str | None) -> None:
    plain = Refusal(status, "No.")
    assert (plain.type, plain.code, plain.told_code) == (kind, code, code or kind)
    coded = Refusal(status, "No.", code="mine")
    assert (coded.type, coded.code) == (kind, "mine")
    typed = Refusal(status, "No.", type="mine")
    assert (typed.type, typed.code, typed.told_code) == ("mine", None, "mine")
