"""`pointsman-preprocessor`."""

import sys

from pointsman_preprocessor.main import main

if __name__ == "__main__":
    sys.exit(main())
