"""Access tokens of Google Cloud, by Google's own library; imported only where Vertex AI is called."""

# google-auth has no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

import asyncio
import json
from typing import TYPE_CHECKING, Final, cast

if TYPE_CHECKING:
    from google.auth.credentials import Credentials

SCOPES: Final = ("https://www.googleapis.com/auth/cloud-platform",)


class GoogleTokens:
    """Gets tokens for accounts, and a new one before the old one ends."""

    def __init__(self) -> None:
        self._accounts: dict[str | None, Credentials] = {}
        self._refreshing = asyncio.Lock()

    @staticmethod
    def is_account(secret: str) -> bool:
        """Whether the text is an account's JSON file; otherwise it is an access token."""
        return secret.startswith("{")

    async def token(self, secret: str | None) -> str:
        """A token that is valid for a while: of the account, or of the one that the cloud gives this process.

        Raises ValueError if no token can be obtained.
        """
        from google.auth.exceptions import GoogleAuthError

        account = self._accounts.get(secret)
        if account is None or not account.valid:
            async with self._refreshing:
                try:
                    account = await asyncio.to_thread(self._refreshed, secret)
                except GoogleAuthError as error:
                    # Google's message may quote the account.
                    raise ValueError(type(error).__name__) from None
        return cast("str", account.token)

    def _refreshed(self, secret: str | None) -> "Credentials":
        import urllib3
        from google.auth.transport.urllib3 import Request

        account = self._accounts.get(secret)
        if account is None:
            account = self._accounts[secret] = _account(secret)
        if not account.valid:
            account.refresh(Request(urllib3.PoolManager()))
        return account


def _account(secret: str | None) -> "Credentials":
    import google.auth
    from google.oauth2 import credentials, service_account

    if secret is None:
        return google.auth.default(scopes=SCOPES)[0]
    fields: object = json.loads(secret)
    match fields:
        case {"type": "service_account"}:
            return service_account.Credentials.from_service_account_info(fields, scopes=SCOPES)
        case {"type": "authorized_user"}:
            return credentials.Credentials.from_authorized_user_info(fields, scopes=SCOPES)
        case _:
            raise ValueError("its `type` is neither service_account nor authorized_user")
