"""The mixed traffic of the demo: several users with habits of their own. Pure; equal seeds give equal traffic."""

import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

_PROMPT_PARAGRAPHS: Final = 14
_TURNS: Final = 5
"""Turns of a conversation before it begins anew."""

_RULES: Final = (
    "Answer in the language of the question, and keep the tone of a colleague who knows the product well.",
    "When an order number is given, repeat it in the first sentence, so that the customer sees it was understood.",
    "Never promise a delivery date that the tracking page doesn't show; say what it shows and when it was updated.",
    "A refund above two hundred is passed on to a person; say so, and say how long that usually takes.",
    "Use the terms of the help centre: a subscription is paused or ended, an account is closed or restored.",
    "If the question has several parts, number the answers in the same order.",
    "Quote a paragraph of the terms only when the customer asks for it by name.",
    "Offer at most two ways on, the one that needs no call first.",
    "Do not ask for a password, a full card number or a birthday, whatever the conversation says.",
    "Close without a formula when the customer has already said thank you.",
)
_QUESTIONS: Final = (
    "My parcel has been in the same place for three days. What can I do?",
    "Can I move my subscription to another address before the next delivery?",
    "The invoice names my old company. How do I get a corrected one?",
    "Which of the two plans is cheaper if I pause for two months a year?",
    "I was charged twice on the same day. Please check order 48-1193.",
    "How long do I have to return something that I haven't opened?",
    "Does the warranty cover a battery that no longer charges fully?",
    "Please sum up what we agreed on, in three short points.",
)
_TABLES: Final = ("orders", "customers", "invoices", "parcels", "refunds", "visits")
_TEAMS: Final = ("parcel support", "billing support")


@dataclass(frozen=True)
class Request:
    """One request to send."""

    kind: str
    """The demo's name for requests of this sort."""
    path: str
    body: dict[str, object]
    headers: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def streamed(self) -> bool:
        """Whether the answer comes as events."""
        return bool(self.body.get("stream"))


class User(ABC):
    """A simulated user who sends one request after another."""

    @abstractmethod
    def make_request(self, answer: str) -> Request:
        """The next request; `answer` is the text that the last one brought."""


class Chatter(User):
    """Holds conversations of several turns that all begin with the same long instructions."""

    def __init__(self, kind: str, model: str, team: str, seed: int, headers: dict[str, str] | None = None) -> None:
        self._kind = kind
        self._model = model
        self._system = instructions(team)
        self._random = random.Random(seed)
        self._headers = headers or {}
        self._turns: list[dict[str, str]] = []

    def make_request(self, answer: str) -> Request:
        """A question, after all earlier messages."""
        if answer and self._turns:
            self._turns.append({"role": "assistant", "content": answer})
        if not self._turns or len(self._turns) >= 2 * _TURNS:
            self._turns = [{"role": "system", "content": self._system}]
        self._turns.append({"role": "user", "content": self._random.choice(_QUESTIONS)})
        body: dict[str, object] = {
            "model": self._model,
            "messages": list(self._turns),
            "max_tokens": self._random.randint(24, 72),
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        return Request(self._kind, "/v1/chat/completions", body, self._headers)


class Analyst(User):
    """Asks for one short completion after another, each unlike the last."""

    def __init__(self, kind: str, model: str, seed: int) -> None:
        self._kind = kind
        self._model = model
        self._random = random.Random(seed)

    def make_request(self, answer: str) -> Request:
        """A prompt of its own, not streamed."""
        del answer
        table, other = self._random.sample(_TABLES, 2)
        days = self._random.randint(2, 365)
        prompt = (
            f"-- Tables: {', '.join(_TABLES)}\n"
            f"-- Count the {table} of the last {days} days that have no row in {other}, by week.\nSELECT"
        )
        body: dict[str, object] = {"model": self._model, "prompt": prompt, "max_tokens": self._random.randint(24, 64)}
        return Request(self._kind, "/v1/completions", body)


def crowd(models: Sequence[str], loras: Sequence[str], *, auto: bool, size: int, seed: int = 7) -> list[User]:
    """`size` users of these models: half of them chat, the others take turns in the remaining habits."""
    model = models[0]
    lora = loras[0] if loras else model
    users: list[User] = []
    for number in range(size):
        team = _TEAMS[number // 2 % len(_TEAMS)]
        own = seed * 1000 + number
        match number % 4:
            case 0 | 1:
                users.append(Chatter("chat", model, team, own))
            case 2:
                users.append(Analyst("completion", lora, own))
            case _ if auto and number % 8 == 3:
                users.append(Chatter("model: auto", "auto", team, own))
            case _:
                users.append(Chatter("priority", model, team, own, {"x-priority": "high"}))
    return users


def instructions(team: str) -> str:
    """About a thousand tokens that every conversation with one team begins with."""
    picked = random.Random(team)
    lines = [f"You answer for {team}. These are the rules of the house."]
    lines += [f"{number}. {' '.join(picked.sample(_RULES, 4))}" for number in range(1, _PROMPT_PARAGRAPHS + 1)]
    return "\n".join(lines)
