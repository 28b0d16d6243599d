"""AWS's signature of a request, version 4, made by AWS's own library; imported only where Bedrock is called."""

# botocore has no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

import asyncio
import configparser
import json
from typing import TYPE_CHECKING, Final, cast

if TYPE_CHECKING:
    from botocore.credentials import Credentials

_SERVICE: Final = "bedrock"
_NAMES: Final = {
    "aws_access_key_id": "access",
    "accesskeyid": "access",
    "aws_secret_access_key": "secret",
    "secretaccesskey": "secret",
    "aws_session_token": "session",
    "sessiontoken": "session",
}


class AwsSigner:
    """Signs with the keys of a reference, or with those of the cloud's environment."""

    def __init__(self) -> None:
        self._chain: Credentials | None = None

    @staticmethod
    def are_keys(secret: str) -> bool:
        """Whether the text has a key and its secret, as JSON or as in `~/.aws/credentials`, and isn't an API key."""
        return secret.startswith(("{", "["))

    async def sign_post(self, secret: str | None, region: str, url: str, headers: dict[str, str], body: bytes) -> None:
        """Add the signature of a POST to `headers`. Raises ValueError when there are no keys."""
        from botocore.auth import SigV4Auth
        from botocore.awsrequest import AWSRequest
        from botocore.exceptions import BotoCoreError

        try:
            keys = _keys(secret) if secret is not None else await asyncio.to_thread(self._of_the_process)
        except BotoCoreError as error:
            raise ValueError(type(error).__name__) from None
        request = AWSRequest("POST", url, data=body, headers=headers)
        SigV4Auth(keys, _SERVICE, region).add_auth(request)
        headers.update(dict(cast("dict[str, str]", request.headers)))

    def _of_the_process(self) -> object:
        """Environment, shared files, container or instance role; asks the network at times."""
        from botocore.session import get_session

        if self._chain is None:
            session = get_session()
            self._chain = cast("Credentials | None", session.get_credentials())
        if self._chain is None:
            raise ValueError("no AWS credential in the environment, the shared files or the instance role")
        return cast("object", self._chain.get_frozen_credentials())


def _keys(secret: str) -> object:
    from botocore.credentials import ReadOnlyCredentials

    try:
        if secret.startswith("{"):
            fields = {str(name): str(value) for name, value in cast("dict[str, object]", json.loads(secret)).items()}
        else:
            parser = configparser.ConfigParser(interpolation=None)
            parser.read_string(secret)
            fields = dict(parser[parser.sections()[0]])
    except (ValueError, IndexError, configparser.Error):
        raise ValueError("it is neither JSON nor a section of AWS's credentials file") from None
    found = {known: value for name, value in fields.items() if (known := _NAMES.get(name.lower())) is not None}
    if not {"access", "secret"} <= found.keys():
        raise ValueError("it needs aws_access_key_id and aws_secret_access_key")
    return ReadOnlyCredentials(found["access"], found["secret"], found.get("session"))
