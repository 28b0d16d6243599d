"""`pointsman cache purge` names the answers to remove."""

import pytest
from typer.testing import CliRunner

from pointsman_cli.app import app
from pointsman_cli.words import CommandError


@pytest.mark.parametrize("arguments", [["cache", "purge"], ["cache", "purge", "--nats", "nats://127.0.0.1:1"]])
def test_nothing_is_forgotten_by_mistake(arguments: list[str]) -> None:
    result = CliRunner().invoke(app, arguments)
    assert isinstance(result.exception, CommandError)
    assert "whose answers?" in str(result.exception)
