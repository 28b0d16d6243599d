"""Records the golden flight log of the tests anew: `python scripts/record_golden_flight.py`.

`tests/integration/test_flight.py` replays it bit for bit. A change that makes the scheduler decide otherwise, or that
renames a class of its state, fails there; when that is intended, record the log anew in the same commit and say why.
"""

import shutil
from pathlib import Path
from typing import Final

from pointsman_testing.recorded_traffic import RandomTraffic, RecordedBench

FOLDER: Final = Path(__file__).resolve().parents[1] / "tests" / "golden" / "flight"
SEED: Final = 2
INPUTS: Final = 700
"""In each of two segments."""


def main() -> None:
    """Write the log."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    bench = RecordedBench(FOLDER)
    traffic = RandomTraffic(bench, SEED)
    traffic.run(INPUTS)
    bench.rotate()
    traffic.run(INPUTS)
    bench.end()


if __name__ == "__main__":
    main()
