"""`python -m pointsman_contracts export [--check] | compat | release`: generated files of the contracts folder."""

import argparse
import sys
from pathlib import Path

from pointsman_contracts import compatibility, export


def main() -> int:
    """Exit status 0 when all is well, 1 with one line a problem otherwise."""
    parser = argparse.ArgumentParser(prog="python -m pointsman_contracts", description=__doc__)
    parser.add_argument("command", choices=["export", "compat", "release"])
    parser.add_argument("--check", action="store_true", help="export: write nothing, fail when files are stale")
    parser.add_argument("--folder", type=Path, default=Path(__file__).resolve().parent.parent)
    arguments = parser.parse_args()
    folder: Path = arguments.folder
    problems: list[str] = []
    if arguments.command == "export" and arguments.check:
        problems = export.differences(folder)
        if problems:
            problems.append("run: python -m pointsman_contracts export")
    elif arguments.command == "export":
        export.write(folder)
    elif arguments.command == "compat":
        problems = compatibility.check(folder)
        if not problems:
            compared = compatibility.released(folder)
            print(f"{len(compared)} messages against {compared[0].parent}: compatible")  # noqa: T201 - a command's answer
    else:
        problems = compatibility.release(folder)
    for problem in problems:
        print(problem, file=sys.stderr)  # noqa: T201 - as above
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
