"""The service level of one request: its objectives, and the time that was predicted for it."""

from pointsman_contracts.message import Part, always

SERVE, REFUSE, SPILL = "serve", "refuse", "spill"
"""The treatment of a request that is predicted to be late: it is served and counted, refused at once, or sent to
another model that is in time, if there is one."""
UNATTAINABLE = "slo_unattainable"
"""Code of the error for a request that was refused because it would have been late."""


class ServicePromise(Part, frozen=True, kw_only=True):
    """The objectives of a request and the scheduler's prediction. Times are in milliseconds, from receiving the
    request."""

    service_class: str = always("")
    """Name of the service level; empty where the client alone gave objectives."""
    ttft_ms: float | None = None
    """To the first token."""
    itl_ms: float | None = None
    """Between two tokens, on average."""
    predicted_ttft_ms: float | None = None
    """None while the pool's times aren't known well enough."""
    predicted_itl_ms: float | None = None
    """Likewise; also None without `itl_ms`."""
    spilled_from: str = always("")
    """Pool that was predicted to be late, so that the request went to another model."""
