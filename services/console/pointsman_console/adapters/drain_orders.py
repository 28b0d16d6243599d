"""Sends orders to drain engines, with the operator's login: the console's own may not."""

from typing import Final

from nats.errors import Error as NatsError

from pointsman_console.adapters.operator_login import NO_OPERATOR, LoginRefused, connect_operator
from pointsman_console.settings import ConsoleSettings
from pointsman_contracts.draining import DrainAnswer, DrainQuery
from pointsman_contracts.message import MalformedMessage
from pointsman_contracts.subjects import subject

ANSWER_S: Final = 3.0


class OrderUnsent(Exception):
    """No metrics-collector has the order; the text is for the caller."""


class DrainSender:
    """Connects for one order at a time."""

    def __init__(self, settings: ConsoleSettings) -> None:
        self._settings: Final = settings

    async def send_order(self, query: DrainQuery) -> DrainAnswer:
        """The first answer; every metrics-collector gets the order. Raises OrderUnsent."""
        try:
            client = await connect_operator(self._settings, "console drain")
        except LoginRefused as error:
            raise OrderUnsent(str(error)) from error
        try:
            message = await client.request(subject(DrainQuery), query.encode(), timeout=ANSWER_S)
            return DrainAnswer.decode(message.data)
        except (NatsError, TimeoutError, MalformedMessage) as error:
            hint = "" if self._settings.operator_user is not None else NO_OPERATOR
            raise OrderUnsent(f"No metrics-collector answers: {type(error).__name__}.{hint}") from error
        finally:
            await client.close()
