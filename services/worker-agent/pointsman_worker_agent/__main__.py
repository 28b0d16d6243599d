"""The `pointsman-worker-agent` command."""

import sys

from pointsman_worker_agent.main import main

if __name__ == "__main__":
    sys.exit(main())
