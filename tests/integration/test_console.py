"""The console beside a whole gateway: nothing of a prompt is in it, and a real browser shows every page.

The browser is Debian's Chromium, driven by Playwright; where it isn't installed, those tests are skipped.
"""

import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import aiohttp
import httpx
import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, async_playwright

from pointsman_testing import eventually
from pointsman_testing.answered import answered
from pointsman_testing.console_scene import TOKEN
from pointsman_testing.stack import Stack, StackFactory

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(600)]

CHROMIUM: Final = shutil.which("chromium") or shutil.which("chromium-browser")
AXE: Final = Path(__file__).resolve().parents[2] / "services/console/tests/axe/axe.min.js"
MARKER: Final = "canary-prompt-of-the-console-83b1"
PATHS: Final = ("/", "/decisions", "/sessions", "/levels", "/usage", "/batches", "/configuration", "/results")
BARRIERS: Final = ("serious", "critical")

browser_test = pytest.mark.skipif(CHROMIUM is None, reason="Chromium isn't installed: apt-get install chromium")


class Shown:
    """A gateway with a console, and a request that it served."""

    def __init__(self, stack: Stack, url: str, request_id: str, cookies: dict[str, str]) -> None:
        self.stack = stack
        self.url = url
        self.request_id = request_id
        self.cookies = cookies

    @property
    def paths(self) -> tuple[str, ...]:
        """Every page with data."""
        return (*PATHS, f"/decision?id={self.request_id}")

    def client(self) -> httpx.AsyncClient:
        """With the session."""
        return httpx.AsyncClient(base_url=self.url, cookies=self.cookies, timeout=30)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shown(stacks: StackFactory) -> AsyncIterator[Shown]:
    env = {"POINTSMAN_ONE_TIME_TOKEN": TOKEN, "POINTSMAN_PORT": "0"}
    async with stacks.start(stored=True, replicas={"recorder": 1}, settings=env) as stack:
        console = stack.start("console")
        await console.wait_ready()
        [serving] = [line for line in console.log_lines() if line.get("event") == "serving"]
        url = str(serving["url"])
        body = {"model": "llama-3.1-8b", "messages": [{"role": "user", "content": MARKER}], "max_tokens": 4}
        chat = f"{stack.door}/v1/chat/completions"

        async def asked() -> tuple[int, str, str]:
            async with aiohttp.ClientSession() as http, http.post(chat, json=body) as answer:
                return answer.status, answer.headers["x-request-id"], await answer.text()

        status, request_id, text = await answered(asked)
        assert status == 200, text
        async with httpx.AsyncClient(base_url=url) as client:
            (await client.post("/api/login", json={"token": TOKEN})).raise_for_status()
            cookies = dict(client.cookies)
        found = Shown(stack, url, request_id, cookies)

        async def recorded() -> bool:
            async with found.client() as client:
                answer = await client.get(f"/api/decision?id={request_id}")
                return answer.status_code == 200 and answer.json()["requests"][0]["over"]

        await eventually(recorded, timeout=120)
        yield found


@pytest.mark.requirement("CONSOLE-1", "PRIVACY-1")
async def test_no_page_has_anything_of_a_prompt(shown: Shown) -> None:
    answers: list[str] = []
    async with shown.client() as client:
        for path in (*shown.paths, "/api/usage", "/api/limits", "/api/configuration", "/api/configuration/1"):
            answer = await client.get(path)
            answers.append(answer.text)
        story = await client.get(f"/api/decision?id={shown.request_id}")
        answers.append(story.text)
    assert story.json()["requests"][0]["decisions"][0]["runs"][0]["candidates"]
    assert not [text for text in answers if MARKER in text]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        # Chromium's own sandbox can't be had by root.
        sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
        launched = await playwright.chromium.launch(executable_path=CHROMIUM, args=sandbox)
        yield launched
        await launched.close()


async def opened(browser: Browser, shown: Shown, path: str, scheme: Any, width: int = 1280) -> tuple[Page, list[str]]:
    """A page with its data, and what the browser complained about."""
    context = await browser.new_context(color_scheme=scheme, viewport={"width": width, "height": 900})
    name, value = next(iter(shown.cookies.items()))
    await context.add_cookies([{"name": name, "value": value, "url": shown.url}])
    page = await context.new_page()
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    page.on("request", lambda request: None if request.url.startswith(shown.url) else complaints.append(request.url))
    await page.goto(shown.url + path)
    await page.wait_for_selector("#content .panel")
    return page, complaints


async def barriers(page: Page) -> list[str]:
    """The rules that the page breaks, and where."""
    found: dict[str, Any] = await page.evaluate("axe.run()")
    return [
        f"{each['id']}: {[node['html'][:120] for node in each['nodes'][:3]]}"
        for each in found["violations"]
        if each["impact"] in BARRIERS
    ]


@browser_test
@pytest.mark.requirement("CONSOLE-3")
async def test_every_page_is_free_of_barriers_and_asks_no_other_host(browser: Browser, shown: Shown) -> None:
    axe = AXE.read_text()
    for path in shown.paths:
        page, complaints = await opened(browser, shown, path, "light")
        await page.evaluate(axe)
        assert not await barriers(page), path
        # A page changes its colours as it is.
        await page.emulate_media(color_scheme="dark")
        assert not await barriers(page), path
        assert not complaints, path
        await page.context.close()


@browser_test
@pytest.mark.requirement("CONSOLE-3")
async def test_no_page_is_wider_than_a_small_phone(browser: Browser, shown: Shown) -> None:
    for path in shown.paths:
        page, _ = await opened(browser, shown, path, "light", 360)
        assert await page.evaluate("document.documentElement.scrollWidth") <= 360, path
        await page.context.close()


@browser_test
async def test_the_fleet_shows_every_engine_and_sorts_by_keyboard(browser: Browser, shown: Shown) -> None:
    page, complaints = await opened(browser, shown, "/", "light")
    rows = page.locator("th[scope=row]")
    await rows.nth(1).wait_for()
    assert await rows.all_inner_texts() == ["engine-1", "engine-2"]
    await page.get_by_role("button", name="Engine").focus()
    await page.keyboard.press("Enter")
    await page.keyboard.press("Enter")
    assert await rows.all_inner_texts() == ["engine-2", "engine-1"]
    assert await page.locator("th[aria-sort=descending]").inner_text() == "Engine ↓"
    assert not complaints
    await page.context.close()


@browser_test
@pytest.mark.requirement("CONSOLE-1")
async def test_the_address_with_a_token_that_was_used_opens_nothing(browser: Browser, shown: Shown) -> None:
    context = await browser.new_context()
    page = await context.new_page()
    await page.goto(f"{shown.url}/login#token={TOKEN}")
    await page.wait_for_selector("#problem:not([hidden])")
    assert "was used already" in await page.inner_text("#problem")
    assert TOKEN not in page.url
    await page.goto(f"{shown.url}/usage")
    assert "/login?next=" in page.url
    await context.close()
