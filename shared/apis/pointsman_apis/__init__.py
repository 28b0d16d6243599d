"""The HTTP APIs of models: one module for each, and the table of all of them."""

from typing import Final

from pointsman_apis.api import Api
from pointsman_apis.chat import CHAT
from pointsman_apis.completions import COMPLETIONS
from pointsman_apis.embeddings import EMBEDDINGS
from pointsman_apis.messages import MESSAGES
from pointsman_apis.passthrough import PASSED, UNKNOWN
from pointsman_apis.responses import RESPONSES

READ: Final = (CHAT, COMPLETIONS, EMBEDDINGS, RESPONSES, MESSAGES)
"""APIs whose requests and answers are known."""
APIS: Final = (*READ, *PASSED)
"""Every API that requests are routed for."""
_NAMES: Final = {api.name: api for api in APIS}


def named(name: str) -> Api:
    """The API with this name (`RequestFacts.api`). For an unknown name, `UNKNOWN`."""
    return _NAMES.get(name, UNKNOWN)
