"""`pointsman-scheduler`."""

import sys

from pointsman_scheduler.main import main

if __name__ == "__main__":
    sys.exit(main())
