"""Settles what a request used once it has ended."""

from pointsman_edge.deciding.prices import Prices
from pointsman_edge.telling.exchange import Exchange
from pointsman_edge.telling.metrics import EdgeMetrics
from pointsman_runtime.telling.logs import Log

_log = Log("edge")


def settle(exchange: Exchange, prices: Prices, metrics: EdgeMetrics) -> None:
    """Never raises: a request that can't be settled is told as it ended, without what it used."""
    try:
        exchange.settle(prices)
    except Exception as error:  # noqa: BLE001 - the request must have its event, and its body must go
        exchange.usage = exchange.served = exchange.cost_nanos = None
        metrics.unsettled += 1
        if metrics.unsettled == 1:
            _log.error(
                "unsettled",
                error,
                request_id=exchange.request_id,
                hint="its usage is lost; the metric pointsman_edge_unsettled_total counts more of them",
            )
