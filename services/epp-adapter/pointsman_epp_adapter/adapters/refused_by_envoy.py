"""A request that another filter or a route of Envoy's answered after it was sent on, below status 500."""

from typing import Final

from pointsman_edge.telling.exchange import Exchange
from pointsman_epp_adapter.adapters.desk import Desk
from pointsman_epp_adapter.adapters.stream import Stream
from pointsman_epp_adapter.domain.envoy_events import BodyMode, ResponseHead
from pointsman_epp_adapter.domain.envoys_answers import AnsweredByEnvoy
from pointsman_epp_adapter.domain.mutation import Header, HeaderChanges

_ERROR: Final = 400


async def pass_on(
    desk: Desk, exchange: Exchange, head: ResponseHead, stream: Stream, mode: BodyMode, own: list[Header]
) -> None:
    """The client gets it as it is, with the headers `own`; nobody who was chosen had the request. `mode` is how Envoy
    sends answers."""
    exchange.worker = None
    exchange.end("rejected", head.status, head.details)
    if head.status >= _ERROR:
        desk.announcer.rejected(exchange, AnsweredByEnvoy(head.status, head.details))
    await stream.pass_answer(head, mode, HeaderChanges(own, []))
