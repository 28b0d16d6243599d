"""Where keys come from: sets that issuers publish, and buckets."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import cast

import orjson
import pytest
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric import ec
from jwt.algorithms import ECAlgorithm

from pointsman_preprocessor.adapters.published_keys import LARGEST, PublishedKeys
from pointsman_preprocessor.adapters.stored_keys import FollowedKeys
from pointsman_runtime.jetstream.buckets import Bucket
from pointsman_runtime.jetstream.watched_keys import Entry
from pointsman_testing import eventually
from pointsman_testing.name_resolution import leads_to


def published(*kids: str) -> bytes:
    keys: list[object] = []
    for kid in kids:
        public = ec.generate_private_key(ec.SECP256R1()).public_key()
        keys.append(ECAlgorithm.to_jwk(public, as_dict=True) | {"kid": kid})
    return orjson.dumps({"keys": keys})


class Issuer:
    """Publishes keys, or doesn't."""

    def __init__(self) -> None:
        self.body = published("one")
        self.status = 200
        self.asked = 0
        self.url = ""
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        app = web.Application()
        app.router.add_get("/keys", self._answer)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}/keys"

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _answer(self, request: web.Request) -> web.Response:
        self.asked += 1
        headers = {"location": "/keys"} if 300 <= self.status < 400 else {}
        return web.Response(body=self.body, status=self.status, headers=headers)


@pytest.fixture
async def issuer() -> AsyncIterator[Issuer]:
    made = Issuer()
    await made.start()
    yield made
    await made.stop()


@pytest.fixture
async def sets() -> AsyncIterator[PublishedKeys]:
    made = PublishedKeys(floor_s=0.0)
    yield made
    await made.close()


async def read(sets: PublishedKeys, url: str) -> None:
    waiting = sets.refresh_set(url)
    assert waiting is not None
    await waiting


async def test_a_set_is_read_before_anybody_needs_it_and_again_when_a_key_is_missing(
    issuer: Issuer, sets: PublishedKeys
) -> None:
    sets.follow_set(issuer.url, private=False)
    sets.read_due_sets()
    keys = await eventually(lambda: sets.get(issuer.url))
    assert keys.find_key("one", "ES256") is not None
    sets.read_due_sets()
    issuer.body = published("one", "two")
    first, second = sets.refresh_set(issuer.url), sets.refresh_set(issuer.url)
    assert first is not None
    assert second is not None
    await asyncio.gather(first, second)
    after = sets.get(issuer.url)
    assert after is not None
    assert after.has_key("two")
    assert issuer.asked == 2


@pytest.mark.parametrize("trouble", ["gone", "redirect", "nonsense", "no keys", "too long"])
async def test_keys_that_cannot_be_read_anew_stay_in_force(issuer: Issuer, sets: PublishedKeys, trouble: str) -> None:
    await read(sets, issuer.url)
    keys = sets.get(issuer.url)
    assert keys is not None
    issuer.status = {"gone": 500, "redirect": 302}.get(trouble, 200)
    issuer.body = {"nonsense": b"{]", "no keys": b'{"keys": []}', "too long": b" " * (LARGEST + 1)}.get(trouble, b"")
    await read(sets, issuer.url)
    assert sets.get(issuer.url) is keys
    issuer.status, issuer.body = 200, published("two")
    await read(sets, issuer.url)
    assert sets.get(issuer.url) is not keys


async def test_a_set_whose_name_leads_to_a_refused_address_is_not_asked_for(
    sets: PublishedKeys, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("socket.getaddrinfo", leads_to("10.0.0.9"))
    await read(sets, "http://id.example/keys")
    assert sets.get("http://id.example/keys") is None
    assert "a private address; `private: true` allows it" in str([vars(record) for record in caplog.records])


async def test_a_key_missed_in_a_set_just_read_is_looked_for_at_once(issuer: Issuer, sets: PublishedKeys) -> None:
    first = sets.refresh_set(issuer.url)
    assert first is not None
    async with asyncio.timeout(30):
        while sets.get(issuer.url) is None:  # noqa: ASYNC110 - the very next turn of the loop is meant
            await asyncio.sleep(0)
    issuer.body = published("one", "two")
    await read(sets, issuer.url)
    after = sets.get(issuer.url)
    assert after is not None
    assert after.has_key("two")
    await first


async def test_made_up_key_ids_make_no_storm_of_readings(issuer: Issuer) -> None:
    sets = PublishedKeys()
    await read(sets, issuer.url)
    assert [sets.refresh_set(issuer.url) for _ in range(100)] == [None] * 100
    assert issuer.asked == 1
    await sets.close()


class Watched:
    """A bucket whose changes a test tells."""

    def __init__(self) -> None:
        self.put: Callable[[Entry], None]
        self.gone: Callable[[str], None]
        self.listed: Callable[[], None]

    def watch(
        self, on_put: Callable[[Entry], None], on_gone: Callable[[str], None], on_listed: Callable[[], None]
    ) -> None:
        self.put, self.gone, self.listed = on_put, on_gone, on_listed


def test_stored_keys_are_followed_and_what_is_no_key_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    bucket = Watched()
    opened: list[str] = []

    def opening(name: str) -> Bucket:
        opened.append(name)
        return cast("Bucket", bucket)

    keys = FollowedKeys(opening)
    keys.follow_keys()
    keys.follow_keys()
    assert opened == ["pm-keys"]
    assert keys.explain_missing() is not None
    bucket.put(Entry("AB" * 32, b'{"tenant": "acme", "id": "k", "expires_ms": 1000, "later": 1}', 1))
    bucket.put(Entry("cd" * 32, b'{"tenant": ["canary-77"]}', 2))
    bucket.listed()
    assert keys.explain_missing() is None
    found = keys.find_key("ab" * 32)
    assert found is not None
    assert (found.tenant, found.find_problem(999), found.find_problem(1000)) == (
        "acme",
        None,
        "The API key has expired.",
    )
    assert keys.find_key("cd" * 32) is None
    assert "canary" not in "".join(str(record.__dict__) for record in caplog.records)
    bucket.gone("AB" * 32)
    assert keys.find_key("ab" * 32) is None
