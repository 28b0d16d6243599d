"""`pointsman-semantic-cache`."""

import sys

from pointsman_semantic_cache.main import main

if __name__ == "__main__":
    sys.exit(main())
