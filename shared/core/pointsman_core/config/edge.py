"""The section of the edges."""

from typing import Literal
from urllib.parse import urlsplit

from pydantic import Field, field_validator

from pointsman_core.config.section import Section
from pointsman_core.units import ByteSize, Duration, PositiveDuration, PositiveSize


class Cors(Section):
    """Lets scripts of web pages use the gateway. Credentials travel in `authorization`, never in cookies."""

    origins: tuple[str, ...] = Field(min_length=1)
    """Origins of the pages, e.g. `https://chat.example.com`; `*` allows every page."""
    max_age: Duration = 600.0
    """How long a browser may cache the answer to a preflight request."""

    @field_validator("origins")
    @classmethod
    def _are_origins(cls, origins: tuple[str, ...]) -> tuple[str, ...]:
        for origin in origins:
            parts = urlsplit(origin)
            if origin != "*" and (origin != f"{parts.scheme}://{parts.netloc}" or not parts.netloc):
                raise ValueError(
                    f"{origin!r} is not an origin; write it as `https://host` or `https://host:port`, or `*`"
                )
        return origins


RequestEncoding = Literal["gzip", "zstd", "br", "deflate"]


class EdgeSettings(Section):
    """Limits that the edges keep."""

    max_body: PositiveSize = 20 * 2**20
    """Largest body of a request; larger ones get 413. A body above the bus's `max_payload` is sent to stages in
    parts."""
    request_encodings: tuple[RequestEncoding, ...] = ("gzip", "zstd", "br", "deflate")
    """Codings (`Content-Encoding`) of bodies that clients may send compressed. Engines and providers get the body
    uncompressed; `max_body` bounds it compressed and uncompressed. Any other coding gets 415."""
    max_held_answer: ByteSize = 32 * 2**20
    """Most bytes of an answer that are held while response stages review them. For a longer answer a stage's `on_error`
    applies; `deny` answers 502."""
    request_timeout: PositiveDuration = 600.0
    """Longest time from accepting a request to the last byte of its answer; then 504."""
    decision_timeout: PositiveDuration = 30.0
    """Longest time for a decision; then 503. It includes waiting in flow control, and waiting for a stage whose only
    replica has been stopped in order and is started again."""
    silent_wait: Duration = 3.0
    """How long after the last heartbeat of a stage's only replica requests wait for it, where it fell silent without a
    word: it hangs, or was killed. Then 503. Longer, up to `decision_timeout`: requests wait until a killed replica has
    been started again."""
    hop_budget: PositiveDuration = 0.6
    """How long the edge waits for an answer from the stages before it sends the request again. A value above 1.5 s is
    also the time for which a silent stage without a second replica still gets requests."""
    first_byte_timeout: PositiveDuration = 300.0
    """How long one endpoint may take to its first byte; then the next endpoint is tried."""
    connect_timeout: PositiveDuration = 2.0
    """How long connecting to an endpoint may take; then the next endpoint is tried. A system sends the first packet of
    a connection again after 1 s (RFC 6298), so a shorter time gives an engine up for one lost packet, as when many
    connections come at once."""
    stream_idle_timeout: PositiveDuration = 60.0
    """How long an answer may pause between two bytes; then it is cut off with an error."""
    keep_alive: Duration = 15.0
    """How long a stream may be silent until the client gets a comment (of Anthropic's API a `ping` event), so that no
    proxy in between closes its connection; `off` sends none. Before the first event the stream's head leaves with the
    first comment: a later error is then an event of it."""
    cors: Cors | None = None
    """Whether scripts of web pages may use the frontend; default: they may not. Behind Envoy, Envoy's CORS filter
    decides."""
    static_skips: tuple[str, ...] = ()
    """Preprocessing plugins, by instance name, that may be skipped while the edge picks an endpoint by itself. While
    `preprocessing` has any other plugin, the edge answers 503 instead."""

    @field_validator("keep_alive", mode="before")
    @classmethod
    def _may_be_off(cls, value: object) -> object:
        # YAML reads `off` as false.
        return 0.0 if value is False or value == "off" else value
