"""The folder of a stack."""

from pathlib import Path

import pytest

from pointsman_cli.stack.run_folder import RunFolder
from pointsman_cli.words import CommandError


def test_a_folder_has_one_stack_at_a_time(tmp_path: Path) -> None:
    with RunFolder(tmp_path / "run"):
        with pytest.raises(CommandError, match="in use by another") as caught, RunFolder(tmp_path / "run"):
            pass
        assert "--run-dir" in caught.value.advice
    with RunFolder(tmp_path / "run"):
        pass


def test_logs_of_an_earlier_stack_are_gone_and_the_servers_store_stays(tmp_path: Path) -> None:
    with RunFolder(tmp_path / "run") as folder:
        folder.log_path("frontend").write_text("old")
        (folder.nats / "stored").write_text("events")
    with RunFolder(tmp_path / "run") as folder:
        assert not folder.log_path("frontend").exists()
        assert (folder.nats / "stored").read_text() == "events"


def test_a_folder_that_cannot_be_made_is_said_in_words(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CommandError, match="can't be used: Not a directory"), RunFolder(tmp_path / "file" / "run"):
        pass
