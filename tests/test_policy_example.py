"""examples/policy.yaml is right, stands in the order of the proposal, and does what docs/policy.md says."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest

from pointsman_cli.config import configuration
from pointsman_cli.policy.policy_rows import Row
from pointsman_cli.policy.policy_walk import walk
from pointsman_cli.sample_request import read_sample
from pointsman_core.config import Config

EXAMPLES: Final = Path(__file__).resolve().parents[1] / "examples"


@pytest.fixture(scope="module")
def config() -> Config:
    document = configuration.checked(configuration.read(EXAMPLES / "policy.yaml"), "examples/policy.yaml")
    return document.config


async def rows(config: Config, *header: str) -> Sequence[Row]:
    return (await walk(config, read_sample(EXAMPLES / "request.json", header))).rows


@pytest.mark.requirement("S3-1")
async def test_the_example_stands_in_the_order_of_the_proposal(config: Config) -> None:
    found = await rows(config, "x-api-key: pm-example-acme")
    ordered = [
        "infra-request-limit", "infra-token-limit", "api-key-auth", "authorization", "request-limit", "token-limit",
        "model-selector/balanced", "guard", "semantic-cache", "scheduler", "answer: guard", "answer: semantic-cache",
    ]  # fmt: skip
    assert [row.stage for row in found if row.stage in ordered] == ordered
    assert not [row for row in found if row.outcome in ("rejected", "not reached")]


@pytest.mark.requirement("S3-3")
async def test_each_of_its_stages_can_be_switched_off_and_then_it_is_a_plain_proxy(config: Config) -> None:
    off = {"mode": "off"}
    profiles = {
        name: profile.model_copy(
            update={
                "request": tuple(
                    use if use.service == "scheduler" else use.model_copy(update=off) for use in profile.request
                ),
                "response": tuple(use.model_copy(update=off) for use in profile.response),
            }
        )
        for name, profile in config.profiles.items()
    }
    bare = config.model_copy(
        update={
            "preprocessing": tuple(use.model_copy(update=off) for use in config.preprocessing),
            "profiles": profiles,
        }
    )
    sample = read_sample(EXAMPLES / "request.json", ())
    sample = sample._replace(body=sample.body.replace(b'"auto"', b'"llama-8b"'))
    found = await walk(bare, sample)
    assert [row.stage for row in found.rows if row.outcome != "off"] == ["edge", "profile-picker", "scheduler"]
    assert found.identity is None
    assert found.refusal is None


def test_its_keys_are_those_that_its_head_names() -> None:
    text = (EXAMPLES / "policy.yaml").read_text()
    for key in ("pm-example-acme", "pm-example-guest"):
        assert hashlib.sha256(key.encode()).hexdigest() in text
