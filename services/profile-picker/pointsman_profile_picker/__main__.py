"""`pointsman-profile-picker`."""

import sys

from pointsman_profile_picker.main import main

if __name__ == "__main__":
    sys.exit(main())
