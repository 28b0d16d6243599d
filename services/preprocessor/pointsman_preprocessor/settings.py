"""Settings of the preprocessor."""

from pydantic import Field

from pointsman_preprocessor.domain.parse import MAX_VALUES
from pointsman_runtime.settings import ServiceSettings


class PreprocessorSettings(ServiceSettings):
    """What a preprocessor process can be told beside the settings of every service."""

    thread_above: int = Field(default=131072, ge=0)
    """Bodies of more bytes are parsed in a thread, so that small requests don't wait for large ones."""
    max_values: int = Field(default=MAX_VALUES, ge=1024)
    """JSON values that a body may hold, and four times the arrays and objects; more would stall other requests."""
