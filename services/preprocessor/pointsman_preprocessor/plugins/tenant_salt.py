"""`tenant-salt`: engines keep the prefix caches of tenants apart."""

import hashlib
from typing import Final

from pointsman_plugins.preprocessing import ENGINE_SALT, IDENTITY, Incoming, RequestProcessor

SALT_BYTES: Final = 16


class TenantSalt(RequestProcessor):
    """Sets the body's `cache_salt` from the tenant and the salt that the client sent, if any.

    It needn't be secret: every request's salt is made here, of its own tenant.
    """

    type_name = "tenant-salt"
    consumes = (IDENTITY,)
    produces = (ENGINE_SALT,)

    def process(self, incoming: Incoming) -> None:
        tenant = str((incoming.read(IDENTITY) or {}).get("tenant") or "")
        if not tenant:
            return
        given = incoming.field("cache_salt")
        text = f"{len(tenant)}:{tenant}{given if isinstance(given, str) else ''}"
        salt = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=SALT_BYTES).hexdigest()
        incoming.set_field("cache_salt", salt)
        incoming.write(ENGINE_SALT, True)
