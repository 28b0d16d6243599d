"""The `pointsman-console` command."""

import sys

from pointsman_console.main import main

if __name__ == "__main__":
    sys.exit(main())
