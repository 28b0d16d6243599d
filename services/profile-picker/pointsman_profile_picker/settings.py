"""Settings of the profile-picker."""

from pointsman_runtime.configuring.settings import ServiceSettings


class ProfilePickerSettings(ServiceSettings):
    """The settings of every service; the profile-picker has none of its own."""
