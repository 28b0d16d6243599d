"""The `pointsman-batch` command."""

import sys

from pointsman_batch.main import main

if __name__ == "__main__":
    sys.exit(main())
