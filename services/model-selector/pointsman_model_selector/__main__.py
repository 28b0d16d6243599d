"""`pointsman-model-selector`."""

import sys

from pointsman_model_selector.main import main

if __name__ == "__main__":
    sys.exit(main())
