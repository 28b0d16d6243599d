"""Settings of the preprocessor."""

from pydantic import Field

from pointsman_apis.grown_bodies import BODY_CACHE_BYTES
from pointsman_apis.requests import MAX_VALUES
from pointsman_core.units import ByteSize
from pointsman_models.tokenization.defaults import CACHE_BYTES
from pointsman_runtime.configuring.settings import ServiceSettings


class PreprocessorSettings(ServiceSettings):
    """Settings of a preprocessor process, beside those of every service."""

    thread_above: int = Field(default=131072, ge=0)
    """Bodies of more bytes are parsed in a thread, so that small requests don't wait for large ones."""
    tokenize_in_thread_above: int = Field(default=4096, ge=0)
    """Bodies of more bytes are tokenized in a thread, where a tokenizer is configured."""
    token_cache: ByteSize = Field(default=CACHE_BYTES, ge=0)
    """Bytes of the cache of texts and their tokens, for each tokenizer."""
    body_cache: ByteSize = Field(default=BODY_CACHE_BYTES, ge=0)
    """Bytes of the conversations that are kept, so that the next request of each is read at its end alone; 0 for
    none."""
    max_values: int = Field(default=MAX_VALUES, ge=1024)
    """Most JSON values in a body, and four times the arrays and objects in it; more would stall other requests."""
