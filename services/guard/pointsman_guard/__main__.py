"""`pointsman-guard`."""

import sys

from pointsman_guard.main import main

if __name__ == "__main__":
    sys.exit(main())
