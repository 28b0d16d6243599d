"""What a command says of a path without a flight log."""

from pathlib import Path

import pytest

from pointsman_cli.flight.log_reading import log_errors
from pointsman_cli.words import CommandError
from pointsman_flight.reader import open_log


@pytest.mark.parametrize("name", ["absent", "empty-folder", "notes.yaml"])
def test_a_path_without_a_log_is_answered_by_where_schedulers_write_theirs(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty-folder").mkdir()
    (tmp_path / "notes.yaml").write_text("pools: {}\n")
    with pytest.raises(CommandError) as caught, log_errors():
        open_log([tmp_path / name])
    assert name in str(caught.value)
    assert "run/up/state/flight" in caught.value.advice


def test_a_segment_that_was_overwritten_is_a_log_that_was_changed(tmp_path: Path) -> None:
    (tmp_path / "1.flight").write_text("pools: {}\n")
    with pytest.raises(CommandError, match="the log was changed") as caught, log_errors():
        open_log([tmp_path])
    assert "run/up" not in caught.value.advice
