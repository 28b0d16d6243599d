"""The `pointsman-recorder` command."""

import sys

from pointsman_recorder.main import main

if __name__ == "__main__":
    sys.exit(main())
