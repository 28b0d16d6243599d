"""Signatures of callbacks, by which a receiver knows who sent them:
https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md.
"""

import base64
import binascii
import hashlib
import hmac
from collections.abc import Sequence
from typing import Final

_PREFIX: Final = "whsec_"


def signing_headers(secrets: Sequence[str], message_id: str, at_s: int, body: bytes) -> dict[str, str]:
    """The headers of a callback that is sent at this time (unix seconds), with a signature by each secret. A secret
    that begins with `whsec_` is base64, another one is taken as it is written."""
    signed = b"%b.%d.%b" % (message_id.encode(), at_s, body)
    digests = [hmac.new(_key(secret), signed, hashlib.sha256).digest() for secret in secrets]
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(at_s),
        "webhook-signature": " ".join(f"v1,{base64.b64encode(digest).decode()}" for digest in digests),
    }


def _key(secret: str) -> bytes:
    if secret.startswith(_PREFIX):
        try:
            return base64.b64decode(secret.removeprefix(_PREFIX), validate=True)
        except binascii.Error:
            pass
    return secret.encode()
