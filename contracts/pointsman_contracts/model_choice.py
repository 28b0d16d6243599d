"""A choice of model and engine in one: the models that may serve a request, and the outcome.

The model-selector knows prices, qualities and the models that may serve; the scheduler alone knows how long each of its
engines would take now. So the first one makes a `ModelChoice`, and the second one answers it with a `ModelPoint` for
each model.
"""

from pointsman_contracts.message import Part, always
from pointsman_contracts.target import Target


class ModelOption(Part, frozen=True, kw_only=True):
    """One model that may serve the request."""

    name: str
    """The name that requests and the configuration use."""
    target: Target
    block_tokens: int | None = None
    """Tokens in a prefix block of its pool; None at a provider."""
    input_price: int = always(0)
    """Nano-dollars per million prompt tokens."""
    cached_price: int = always(0)
    """The same for prompt tokens that come from a cache."""
    output_price: int = always(0)
    """Nano-dollars per million tokens of the answer."""
    output_tokens: float = always(0.0)
    """Expected length of each answer."""
    quality: float = always(0.0)
    """In [0,1]."""
    score: float = always(0.0)
    """Weighted sum of the selector's scorers."""
    first_token_ms: float | None = None
    """Mean time to the first token of recent answers, for a model whose time can't be predicted; None when unknown."""
    token_ms: float | None = None
    """Mean time between its tokens."""


class ModelChoice(Part, frozen=True, kw_only=True):
    """The models, and how to choose among them: the highest weighted sum of those within all limits."""

    options: tuple[ModelOption, ...]
    """In the selector's order, which settles ties."""
    time: float = always(0.0)
    """Weight of the time: the shortest one, divided by the model's."""
    money: float = always(0.0)
    """Weight of the cost: the lowest one, divided by the model's."""
    quality: float = always(0.0)
    """Weight of the quality."""
    second_worth: int | None = None
    """Nano-dollars that a second to the last token is worth. When set, the weights don't count: the highest net worth
    wins, which is quality less cost and seconds, each at its price."""
    first_token_worth: int = always(0)
    """Nano-dollars that a second to the first token is worth beyond that."""
    quality_worth: int = always(0)
    """Nano-dollars that an answer of quality 1 is worth more than one of quality 0."""
    most_first_token_ms: float | None = None
    """Limit of the time to the first token."""
    most_answer_ms: float | None = None
    """Limit of the time to the last token."""
    most_cost: int | None = None
    """Limit of the cost, in nano-dollars."""
    least_quality: float | None = None
    """Limit of the quality."""
    strict: bool = always(False)
    """Reject the request when no model is within all limits. Otherwise the nearest one serves it."""
    fallbacks: int = always(0)
    """How many of the next best models the edge may try."""


class ModelPoint(Part, frozen=True, kw_only=True):
    """One model in the plane of time, money and quality when the choice was made."""

    model: str
    """The name that requests and the configuration use."""
    place: str
    """The pool or provider that serves it."""
    worker: str = ""
    """The engine that the times are of; empty at a provider and where nothing is predicted."""
    time_from: str = ""
    """`predicted`: for that engine now. `measured`: the mean of recent answers. Empty when the times are unknown."""
    first_token_ms: float | None = None
    answer_ms: float | None = None
    """To the last token."""
    others_ms: float = 0.0
    """How much longer all other requests there would take together."""
    cached_tokens: int = 0
    """Prompt tokens that are believed cached there."""
    cost: int = 0
    """Expected, in nano-dollars."""
    quality: float = 0.0
    total: float | None = None
    """Weighted sum; None for a model that can't serve the request."""
    verdict: str = always("")
    """`chosen`, or why another model was, in words."""
