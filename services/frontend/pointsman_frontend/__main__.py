"""`pointsman-frontend`."""

import sys

from pointsman_frontend.main import main

if __name__ == "__main__":
    sys.exit(main())
