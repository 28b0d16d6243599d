"""`pointsman-bundle`."""

import sys

from pointsman_bundle.main import main

if __name__ == "__main__":
    sys.exit(main())
