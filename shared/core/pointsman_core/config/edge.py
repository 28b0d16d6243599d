"""The section of the edges."""

from urllib.parse import urlsplit

from pydantic import Field, field_validator

from pointsman_core.config.section import Section
from pointsman_core.units import ByteSize, Duration, PositiveDuration, PositiveSize


class Cors(Section):
    """Lets scripts of web pages use the gateway. Credentials travel in `authorization`, never in cookies."""

    origins: tuple[str, ...] = Field(min_length=1)
    """Origins whose pages may, e.g. `https://chat.example.com`; `*` is every page."""
    max_age: Duration = 600.0
    """How long a browser may cache the answer to a preflight request."""

    @field_validator("origins")
    @classmethod
    def _are_origins(cls, origins: tuple[str, ...]) -> tuple[str, ...]:
        for origin in origins:
            parts = urlsplit(origin)
            if origin != "*" and (origin != f"{parts.scheme}://{parts.netloc}" or not parts.netloc):
                raise ValueError(f"{origin!r} is no origin; write it as `https://host` or `https://host:port`, or `*`")
        return origins


class Edge(Section):
    """Limits that the edges keep."""

    max_body: PositiveSize = 20 * 2**20
    """Larger bodies get 413. A body that is larger than a message of the bus (`max_payload`) goes to the stages in
    parts."""
    max_held_answer: ByteSize = 32 * 2**20
    """How much of an answer is held for stages that the client waits for. A stage that needs more follows its
    `on_error`; `deny` answers 502."""
    request_timeout: PositiveDuration = 600.0
    """From accepting a request to its last byte; then 504."""
    decision_timeout: PositiveDuration = 30.0
    """How long a decision may take; then 503. Includes waiting in flow control, and for a stage that has just lost its
    only replica."""
    hop_budget: PositiveDuration = 0.6
    """How long the edge waits for an answer from the stages before it sends the request again; beyond 1.5 s also how
    long a stage without a second replica is asked though it is silent."""
    first_byte_timeout: PositiveDuration = 300.0
    """How long one endpoint may take to its first byte; then the next endpoint is tried."""
    connect_timeout: PositiveDuration = 1.0
    """How long connecting to an endpoint may take; then the next endpoint is tried."""
    stream_idle_timeout: PositiveDuration = 60.0
    """How long an answer may pause between two bytes; then it is cut off with an error."""
    cors: Cors | None = None
    """Whether scripts of web pages may use the frontend; default: they may not. Behind Envoy, Envoy's CORS filter
    decides."""
    static_skips: tuple[str, ...] = ()
    """Preprocessing plugins, by instance name, that may be skipped while the edge picks an endpoint by itself. With
    any other one configured it answers 503 then."""
