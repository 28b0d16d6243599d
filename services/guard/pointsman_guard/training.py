"""`python -m pointsman_guard.training`: trains a model for the detector `linear` on two files with one text a line."""

import argparse
from pathlib import Path

from pointsman_guard.domain.folding import fold
from pointsman_guard.domain.linear_model import trained


def main() -> None:
    """Read, fit, write."""
    parser = argparse.ArgumentParser(prog="python -m pointsman_guard.training", description=__doc__)
    parser.add_argument("found", type=Path, help="texts that the model must find, one per line")
    parser.add_argument("harmless", type=Path, help="harmless texts, one per line")
    parser.add_argument("model", type=Path, help="the file of the model, which is written")
    told = parser.parse_args()
    found, harmless = (
        [fold(line) for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
        for file in (told.found, told.harmless)
    )
    model = trained([*found, *harmless], [True] * len(found) + [False] * len(harmless))
    told.model.write_bytes(model.encode())


if __name__ == "__main__":
    main()
