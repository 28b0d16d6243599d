"""An error tells what is at fault by its words and kinds, where its status says something else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman_providers.error_status import NO_MODEL, NO_QUOTA, true_status


@pytest.mark.parametrize(
    ("status", "kinds", "message", "expected"),
    [
        # Errors of the request stay so.
        (400, ("invalid_request_error",), "Bad n.", 400),
        (400, ("unsupported_parameter", "x"), "'max_tokens' is not supported with this model.", 400),
        (400, ("context_length_exceeded",), "This model's maximum context length is 8192 tokens.", 400),
        (400, ("invalid_request_error",), "prompt is too long: 234872 tokens > 200000 maximum", 400),
        (400, ("INVALID_ARGUMENT",), "The input token count (9) exceeds the maximum number of tokens (8).", 400),
        (400, ("content_filter",), "The response was filtered.", 400),
        (400, (), "Image input is not supported by this model.", 400),
        (413, ("tokens", "rate_limit_exceeded"), "Request too large for model `m` on tokens per minute (TPM)", 413),
        (422, ("value_error",), "field required", 422),
        (404, ("previous_response_not_found",), "Previous response with id 'resp_1' not found.", 404),
        (404, ("invalid_request_error",), "No such File object: file-1", 404),
        # The request's own words, which an error quotes, count for nothing.
        (400, ("invalid_value",), "Invalid value: 'credit balance, model not found, api key not valid'.", 400),
        # No credit or quota.
        (400, ("invalid_request_error",), "Your credit balance is too low to access the Anthropic API.", NO_QUOTA),
        (429, ("insufficient_quota",), "You exceeded your current quota.", NO_QUOTA),
        (429, ("exceeded_current_quota_error",), "Your account is suspended.", NO_QUOTA),
        (429, ("1113",), "Insufficient balance or no resource package. Please recharge.", NO_QUOTA),
        (403, (), "Your team has used all available credits or reached its monthly spending limit.", NO_QUOTA),
        (429, ("RESOURCE_EXHAUSTED",), "You exceeded your current quota, please check your plan and billing.", 429),
        (429, ("tokens", "rate_limit_exceeded"), "Rate limit reached for `m` in organization org-1.", 429),
        # A wrong key.
        (400, ("INVALID_ARGUMENT", "API_KEY_INVALID"), "API key not valid. Please pass a valid API key.", 401),
        (400, ("invalid_request_error",), "Incorrect API key provided.", 401),
        (400, ("FAILED_PRECONDITION",), "User location is not supported for the API use.", 403),
        (401, (), "", 401),
        (403, ("permission_error",), "Your API key can't use this resource.", 403),
        # No such model, or path.
        (400, ("invalid_request_error",), "Model Not Exist", NO_MODEL),
        (400, ("ValidationException",), "The provided model identifier is invalid.", NO_MODEL),
        (400, ("invalid_model",), "Invalid model: x", NO_MODEL),
        (403, ("model_not_found",), "Project `proj_1` does not have access to model `gpt-4`", NO_MODEL),
        (404, ("not_found_error",), "model: claude-9", NO_MODEL),
        (404, ("NOT_FOUND",), "Publisher Model `projects/p/locations/l/models/m` was not found", NO_MODEL),
        (404, ("DeploymentNotFound",), "The API deployment for this resource does not exist.", NO_MODEL),
        (404, (), "This model version has reached the end of its life.", NO_MODEL),
        (404, (), "", NO_MODEL),
        (404, (), "Not Found", NO_MODEL),
        (404, (), "404 page not found", NO_MODEL),
        (404, (), "Resource not found", NO_MODEL),
        (404, ("invalid_request_error",), "Invalid URL (POST /v1/chat/completion)", NO_MODEL),
        # Refused content.
        (403, (), "Content violates usage guidelines.", 400),
        (403, (), 'm requires moderation on OpenAI. Your input was flagged for "x"', 400),
        # A limit, or an outage.
        (400, ("ServiceQuotaExceededException",), "", 429),
        (400, ("rate_limit_exceeded",), "", 429),
        (400, ("overloaded_error",), "", 503),
        (500, ("insufficient_quota",), "", 500),
    ],
)
def test_the_status_is_of_what_is_at_fault(status: int, kinds: tuple[str, ...], message: str, expected: int) -> None:
    assert true_status(status, kinds, message) == expected


@given(st.sampled_from([400, 403, 404, 422, 429]), st.lists(st.text(), max_size=3), st.text())
def test_no_words_are_an_error(status: int, kinds: list[str], message: str) -> None:
    assert 400 <= true_status(status, kinds, message) < 600
