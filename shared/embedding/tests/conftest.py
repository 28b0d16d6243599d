"""A real embedding model, written once for all workers of a run."""

from pathlib import Path

import pytest

from pointsman_testing.minilm import minilm


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return minilm(tmp_path_factory.getbasetemp().parent)
