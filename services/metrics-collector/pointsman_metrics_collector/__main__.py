"""The `pointsman-metrics-collector` command."""

import sys

from pointsman_metrics_collector.main import main

if __name__ == "__main__":
    sys.exit(main())
