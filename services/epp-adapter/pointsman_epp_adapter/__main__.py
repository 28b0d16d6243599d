"""`pointsman-frontend`."""

import sys

from pointsman_epp_adapter.main import main

if __name__ == "__main__":
    sys.exit(main())
