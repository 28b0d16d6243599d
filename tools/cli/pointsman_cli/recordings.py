"""Questions to a recorder, over the command's own connection."""

from typing import TypeVar

import nats.errors
from nats.aio.client import Client

from pointsman_contracts.message import Message
from pointsman_contracts.subjects import subject

PATIENCE_S = 5.0

M = TypeVar("M", bound=Message)


async def ask(client: Client, question: Message, answer: type[M]) -> M | None:
    """The answer of the first recorder; None when none answers."""
    try:
        reply = await client.request(subject(type(question)), question.encode(), timeout=PATIENCE_S)
    except (nats.errors.NoRespondersError, nats.errors.TimeoutError):
        return None
    return answer.decode(reply.data)
