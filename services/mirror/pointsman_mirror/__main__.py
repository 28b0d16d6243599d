"""The `pointsman-mirror` command."""

import sys

from pointsman_mirror.main import main

if __name__ == "__main__":
    sys.exit(main())
