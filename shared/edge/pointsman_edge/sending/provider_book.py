"""The external providers of each revision, and URL and headers of a request to one."""

from collections.abc import Sequence
from typing import Final

from pointsman_contracts.journey import BodyEdit
from pointsman_core.config import Config
from pointsman_edge.credentials.provider_credentials import Credentials
from pointsman_edge.deciding.policy import EdgePolicy
from pointsman_edge.sending.provider_pauses import ProviderPauses
from pointsman_providers.exchange import ProviderCall
from pointsman_providers.resolve import Resolved, resolve

_REMEMBERED: Final = 8


class ProviderBook:
    """The providers of every revision that a request still keeps to."""

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials
        self._revisions: dict[int, tuple[Config, dict[str, Resolved]]] = {}
        self._checked: Config | None = None
        self.pauses: Final = ProviderPauses()
        """Which of them aren't asked for a while."""

    def check(self, policy: EdgePolicy) -> None:
        """Log the missing credentials of each revision once. Called several times a second."""
        if policy.config is not self._checked:
            self._checked = policy.config
            for provider in self._of(policy).values():
                self._credentials.check(provider)

    def find(self, policy: EdgePolicy, name: str | None) -> Resolved | None:
        """The provider of this name; None: the revision has none."""
        return self._of(policy).get(name or "")

    async def prepared(self, provider: Resolved, call: ProviderCall) -> tuple[str, dict[str, str]]:
        """URL and headers of the POST, the credential among them. Raises CredentialMissing."""
        url = provider.url + call.path
        headers = {
            "content-type": "application/json",
            "accept-encoding": "identity",
            "user-agent": "pointsman",
            **call.headers,
            **{name.lower(): value for name, value in provider.settings.headers.items()},
        }
        await self._credentials.authorize(provider, url, headers, call.body)
        return url, headers

    def _of(self, policy: EdgePolicy) -> dict[str, Resolved]:
        kept = self._revisions.pop(policy.revision, None)
        # A new bucket counts its revisions from 1 again.
        if kept is None or kept[0] is not policy.config:
            if len(self._revisions) >= _REMEMBERED:
                del self._revisions[next(iter(self._revisions))]
            kept = policy.config, resolve(policy.config)
        self._revisions[policy.revision] = kept
        return kept[1]


ENGINE_ONLY: Final = frozenset({"cache_salt"})
"""Fields that preprocessing sets for our engines; a provider has nothing to do with them."""


def outward(edits: Sequence[BodyEdit]) -> list[BodyEdit]:
    """Without the fields that are meant for the pools' engines."""
    return [BodyEdit(field=edit.field, remove=True) if edit.field in ENGINE_ONLY else edit for edit in edits]
