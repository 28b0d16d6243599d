"""Who gets in, and what everybody else sees: nothing."""

from functools import partial
from hashlib import sha256

import httpx
import pytest

from pointsman_console.adapters.door import COOKIE
from pointsman_console.adapters.pages import PAGES
from pointsman_hosting.host import EXIT_SETTINGS
from pointsman_testing import Processes, eventually
from pointsman_testing.console_scene import TOKEN, ConsoleScene

KEY = "pm-a-key-of-this-test"
PATHS = [page.path for page in PAGES] + ["/decision?id=r-1"]
QUESTIONS = [
    "/api/session",
    "/api/fleet/stream",
    "/api/decisions/stream",
    "/api/decision?id=r-1",
    "/api/usage",
    "/api/limits",
    "/api/configuration",
    "/api/configuration/1",
    "/api/results",
    "/api/regret",
    "/api/anything",
]


@pytest.mark.requirement("CONSOLE-1")
async def test_without_a_session_there_is_the_login_page_and_no_data(scene: ConsoleScene) -> None:
    await scene.start()
    async with scene.client() as stranger:
        for path in PATHS:
            answer = await stranger.get(path)
            assert (answer.status_code, answer.content) == (303, b""), path
            assert answer.headers["location"].startswith("/login")
        for path in QUESTIONS:
            answer = await stranger.get(path)
            assert (answer.status_code, answer.json()) == (401, {"error": "Log in with a key."}), path
        assert (await stranger.post("/api/configuration/rollback", json={"revision": 1})).status_code == 401
        login = await stranger.get("/login")
        assert login.status_code == 200
        assert "<nav" not in login.text


@pytest.mark.requirement("CONSOLE-1")
async def test_a_key_without_the_scope_sees_nothing_and_one_with_it_everything(scene: ConsoleScene) -> None:
    await scene.start()
    await scene.key("pm-inference", "inference")
    await scene.key("pm-late", "console", expires_ms=1)
    await scene.key("pm-off", "console", disabled=True)
    await scene.key(KEY, "console")
    async with scene.client() as stranger:
        for wrong in ("pm-inference", "pm-late", "pm-off", "pm-unknown", ""):
            answer = await stranger.post("/api/login", json={"key": wrong})
            assert (answer.status_code, "set-cookie" in answer.headers) == (401, False), wrong
    async with scene.logged_in(KEY) as client:
        assert (await client.get("/api/session")).json()["name"] == KEY
        for page in PAGES:
            assert (await client.get(page.path)).status_code == 200


async def test_an_address_without_a_page_is_a_page_that_says_so(scene: ConsoleScene) -> None:
    await scene.start()
    await scene.key(KEY, "console")
    async with scene.logged_in(KEY) as client:
        page = await client.get("/decisions/r-1")
        assert page.status_code == 404
        assert page.headers["content-type"].startswith("text/html")
        assert "<h1>Page not found</h1>" in page.text
        question = await client.get("/api/anything")
        assert (question.status_code, question.json()) == (404, {"error": "The console has no page at this address."})


async def test_a_key_of_the_configuration_opens_a_session_too(scene: ConsoleScene) -> None:
    await scene.start()
    digest = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    text = "pools: {p: {models: [m], discovery: agents}}\npreprocessing:\n  - use: api-key-auth\n    keys:\n"
    await scene.configure(text + f"      - {{sha256: {digest}, id: other, tenant: t, scopes: [console]}}\n")
    async with scene.client() as stranger:
        assert (await stranger.post("/api/login", json={"key": KEY})).status_code == 401
    own = sha256(KEY.encode()).hexdigest()
    await scene.configure(text + f"      - {{sha256: {own}, id: written, tenant: t, scopes: [console]}}\n")
    async with scene.logged_in(KEY) as client:
        assert (await client.get("/api/session")).json()["name"] == "written"


async def test_a_revoked_key_ends_its_sessions(scene: ConsoleScene) -> None:
    await scene.start()
    await scene.key(KEY, "console")
    async with scene.logged_in(KEY) as client:
        assert (await client.get("/api/session")).status_code == 200
        await scene.forget_key(KEY)

        async def refused() -> bool:
            return (await client.get("/api/session")).status_code == 401

        await eventually(refused)


async def test_the_one_time_token_opens_one_session(scene: ConsoleScene) -> None:
    await scene.start()
    async with scene.logged_in() as client:
        assert (await client.get("/api/session")).status_code == 200
    async with scene.client() as second:
        answer = await second.post("/api/login", json={"token": TOKEN})
        assert answer.status_code == 401
        assert "pointsman keys create" in answer.json()["error"]


async def test_logging_out_ends_the_session(scene: ConsoleScene) -> None:
    await scene.start()
    async with scene.logged_in() as client:
        cookie = client.cookies[COOKIE]
        assert (await client.post("/api/logout", json={})).status_code == 200
        client.cookies.set(COOKIE, cookie)
        assert (await client.get("/api/session")).status_code == 401


async def test_keys_cant_be_tried_at_any_rate(scene: ConsoleScene) -> None:
    await scene.start()
    async with scene.client() as stranger:

        async def braked() -> bool:
            return (await stranger.post("/api/login", json={"key": "pm-guess"})).status_code == 429

        await eventually(braked)


async def test_the_session_is_a_cookie_that_no_script_and_no_other_site_gets(scene: ConsoleScene) -> None:
    await scene.start(POINTSMAN_HTTPS="true")
    async with scene.client() as client:
        answer = await client.post("/api/login", json={"token": TOKEN})
    cookie = answer.headers["set-cookie"].lower()
    assert all(part in cookie for part in ("httponly", "samesite=strict", "secure", "path=/"))


@pytest.mark.requirement("CONSOLE-2")
async def test_a_change_needs_the_sessions_token_and_a_page_of_this_origin(scene: ConsoleScene) -> None:
    await scene.start()
    async with scene.logged_in() as client:
        log_out = partial(client.post, "/api/logout", json={})
        assert (await log_out(headers={"x-csrf-token": "another"})).status_code == 403
        assert (await log_out(headers={"origin": "https://evil.example"})).status_code == 403
        assert (await log_out(headers={"origin": scene.url})).status_code == 200


@pytest.mark.requirement("CONSOLE-2")
async def test_every_answer_forbids_scripts_of_others_and_frames(scene: ConsoleScene) -> None:
    await scene.start()
    async with scene.logged_in() as client, scene.client() as stranger:
        answers: list[httpx.Response] = [await stranger.get(path) for path in ("/", "/login", "/api/usage")]
        answers += [await client.get(path) for path in (*PATHS, "/static/frame.js", "/api/session", "/nothing")]
    for answer in answers:
        policy = dict(part.split(" ", 1) for part in answer.headers["content-security-policy"].split("; "))
        assert policy["default-src"] == "'none'"
        assert policy["frame-ancestors"] == "'none'"
        assert {value for name, value in policy.items() if name.endswith("-src")} == {"'none'", "'self'"}
        assert answer.headers["x-content-type-options"] == "nosniff"


async def test_no_page_has_scripts_or_styles_in_its_text(scene: ConsoleScene) -> None:
    await scene.start()
    async with scene.logged_in() as client:
        for path in (*PATHS, "/login"):
            text = (await client.get(path)).text
            assert " style=" not in text
            assert "<style" not in text
            assert "<script>" not in text
            assert "http://" not in text
            assert "https://" not in text


async def test_an_address_that_strangers_reach_and_a_short_token_are_refused(processes: Processes) -> None:
    for env in ({"POINTSMAN_HOST": "0.0.0.0"}, {"POINTSMAN_ONE_TIME_TOKEN": "short"}):  # noqa: S104 - refused
        console = processes.start("pointsman-console", env=env)
        assert await console.ended(60) == EXIT_SETTINGS


async def test_keys_cant_be_checked_without_the_bus_and_nothing_is_shown(scene: ConsoleScene) -> None:
    await scene.start()
    await scene.key(KEY, "console")
    scene.server.stop()
    async with scene.client() as stranger:

        async def unreachable() -> bool:
            return (await stranger.post("/api/login", json={"key": KEY})).status_code == 503

        await eventually(unreachable)
