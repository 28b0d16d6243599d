"""Names that a configuration gives, resolved."""

import socket

import aiohttp
import pytest
from aiohttp import web
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.test_utils import TestServer

from pointsman_hosting.outbound import AddressRefused, CheckedResolver, connector, reason_of
from pointsman_testing.name_resolution import leads_to


class Names(AbstractResolver):
    """Every name has these addresses."""

    def __init__(self, *addresses: str) -> None:
        self.addresses = addresses

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        return [
            ResolveResult(hostname=host, host=address, port=port, family=family, proto=0, flags=0)
            for address in self.addresses
        ]

    async def close(self) -> None: ...


@pytest.mark.parametrize(
    ("addresses", "private", "taken"),
    [
        (["93.184.216.34"], False, True),
        (["10.0.0.1"], False, False),
        (["10.0.0.1"], True, True),
        (["127.0.0.1"], False, False),
        (["127.0.0.1"], True, True),
        (["169.254.169.254"], True, False),
        (["fe80::1%eth0"], True, False),
        (["::ffff:169.254.169.254"], True, False),
        (["93.184.216.34", "10.0.0.1"], False, False),
    ],
)
async def test_a_name_is_resolved_to_addresses_that_may_be_asked_or_not_at_all(
    addresses: list[str], private: bool, taken: bool
) -> None:
    resolver = CheckedResolver(private=private, inner=Names(*addresses))
    if taken:
        assert [found["host"] for found in await resolver.resolve("id.example", 443)] == addresses
    else:
        with pytest.raises(AddressRefused, match=r"id\.example is "):
            await resolver.resolve("id.example", 443)
    await resolver.close()


async def test_this_machine_is_asked_by_the_name_that_it_always_has() -> None:
    resolver = CheckedResolver(private=False, inner=Names("127.0.0.1", "::1"))
    assert len(await resolver.resolve("localhost", 1)) == 2
    await resolver.close()


async def test_a_name_that_leads_elsewhere_later_is_refused_then(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error has the reason, and no connection was made."""
    asked: list[str] = []

    async def serve(request: web.Request) -> web.Response:
        asked.append(request.path)
        return web.Response()

    app = web.Application()
    app.router.add_get("/{path}", serve)
    async with TestServer(app) as server, aiohttp.ClientSession(connector=connector(private=False)) as session:
        monkeypatch.setattr("socket.getaddrinfo", leads_to("127.0.0.1"))
        with pytest.raises(aiohttp.ClientError) as refused:
            await session.get(f"http://id.example:{server.make_url('/').port}/keys")
    assert reason_of(refused.value) == "id.example is 127.0.0.1, a private address; `private: true` allows it"
    assert not asked
