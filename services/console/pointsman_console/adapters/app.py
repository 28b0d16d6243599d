"""The HTTP application: pages, and what they ask for."""

import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from datetime import date
from typing import Annotated, Final, NamedTuple, cast

import orjson
from fastapi import Body, FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, HTMLResponse
from fastapi.staticfiles import StaticFiles
from pydantic import BaseModel, Field, JsonValue

from pointsman_console.adapters.door import COOKIE, DRAIN, DRY_RUN, cookie_of
from pointsman_console.adapters.pages import MISSING, STATIC, rendered
from pointsman_console.adapters.stream import Streams
from pointsman_console.domain import level_rows
from pointsman_console.domain.sampling import DecisionFilter
from pointsman_console.domain.sessions import BrowserSession
from pointsman_console.domain.usage_rows import DIMENSIONS, ENGINE_TIME_DIMENSIONS
from pointsman_contracts.attainment import AttainmentQuery
from pointsman_contracts.engine_time import EngineTimeQuery
from pointsman_contracts.usage import UsageQuery
from pointsman_core.agent_sessions import WantedSessions
from pointsman_core.units import PositiveDuration

Events = AsyncGenerator[bytes]
Text = Annotated[str, Query(max_length=512)]
Day = date | None
Minutes = Annotated[int, Query(ge=1, le=2880)]


class Failed(Exception):
    """A question that has no answer: status, and words for the page."""

    def __init__(self, status: int, words: str) -> None:
        super().__init__(words)
        self.status = status


class LoginAttempt(BaseModel):
    """The body that the login page sends: a key, or the one-time token of the address that `pointsman up` printed."""

    key: str = ""
    token: str = ""


class WantedRevision(BaseModel):
    """A revision to roll back to."""

    revision: int


class WantedDrain(BaseModel):
    """The body of the webhook by which engines are ordered to drain, e.g. because their machine is taken away."""

    engine: str = Field(default="", max_length=2048)
    """URL or name of one engine."""
    host: str = Field(default="", max_length=512)
    """Instead: every engine of this host, by its address, or by the label `host` or `kubernetes.io/hostname`."""
    pool: str = Field(default="", max_length=512)
    within: PositiveDuration = 30.0
    """When what they have moves: before the machine is gone."""
    undo: bool = False
    force: bool = True
    """Also the last engine that serves a model: a machine that is taken away doesn't wait for another one."""
    why: str = Field(default="", max_length=200)


class TriedRequest(BaseModel):
    """A request whose decision is asked for."""

    path: str = Field(default="/v1/chat/completions", max_length=512)
    headers: dict[str, str] = Field(default={}, max_length=100)
    """Its own, a client's key among them."""
    body: dict[str, JsonValue]


class Opened(NamedTuple):
    """A session that began."""

    cookie: str
    session: BrowserSession


class Answers(NamedTuple):
    """The functions behind the routes."""

    log_in: Callable[[LoginAttempt], Awaitable[Opened]]
    log_out: Callable[[str], None]
    still: Callable[[BrowserSession], Awaitable[bool]]
    fleet: Callable[[], Events]
    decisions: Callable[[DecisionFilter], Events]
    agent_sessions: Callable[[WantedSessions], Events]
    decision: Callable[[str, str], Awaitable[JsonValue]]
    """Takes the id of a request, or else that of a trace."""
    levels: Callable[[AttainmentQuery], Awaitable[JsonValue]]
    usage: Callable[[UsageQuery], Awaitable[JsonValue]]
    engine_time: Callable[[EngineTimeQuery], Awaitable[JsonValue]]
    limits: Callable[[], Awaitable[JsonValue]]
    batches: Callable[[], Awaitable[JsonValue]]
    revisions: Callable[[], Awaitable[JsonValue]]
    revision: Callable[[int, int | None], Awaitable[JsonValue]]
    rollback: Callable[[BrowserSession, int], Awaitable[JsonValue]]
    drain: Callable[[str, WantedDrain], Awaitable[JsonValue]]
    """Takes the key of the header `authorization`."""
    dry_run: Callable[[str, TriedRequest], Awaitable[JsonValue]]
    """Takes that key, too."""
    regret: Callable[[], Awaitable[JsonValue]]
    results: Callable[[], Awaitable[JsonValue]]
    result: Callable[[str], Awaitable[JsonValue]]


def application(answers: Answers, streams: Streams, *, https: bool, lasts_s: float) -> FastAPI:
    """Every route. `Door` requires a session."""
    app: Final = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    pages = rendered()
    missing: Final = pages.pop(MISSING.path)
    for path, document in pages.items():
        _serve_page(app, path, document)
    app.mount("/static", StaticFiles(directory=STATIC))

    @app.exception_handler(Failed)
    def failed(request: Request, error: Failed) -> Response:
        del request
        return answer({"error": str(error)}, error.status)

    @app.exception_handler(404)
    def not_found(request: Request, error: Exception) -> Response:
        del error
        if request.url.path.startswith(("/api/", "/static/")):
            return answer({"error": "The console has no page at this address."}, 404)
        return HTMLResponse(missing, 404)

    @app.exception_handler(RequestValidationError)
    def malformed(request: Request, error: RequestValidationError) -> Response:
        del request, error  # it quotes the request, which may have a key in it
        return answer({"error": "The request lacks a field, or has a field of the wrong type; reload the page."}, 422)

    @app.get("/favicon.ico")
    def icon() -> Response:
        return FileResponse(STATIC / "icon.svg", media_type="image/svg+xml")

    @app.post("/api/login")
    async def log_in(given: Annotated[LoginAttempt, Body()]) -> Response:
        opened = await answers.log_in(given)
        response = answer(_described(opened.session))
        response.set_cookie(
            COOKIE, opened.cookie, max_age=round(lasts_s), httponly=True, samesite="strict", secure=https, path="/"
        )
        return response

    @app.post("/api/logout")
    def log_out(request: Request) -> Response:
        answers.log_out(cookie_of(request.scope))
        response = answer({})
        response.delete_cookie(COOKIE, httponly=True, samesite="strict", secure=https, path="/")
        return response

    @app.get("/api/session")
    def session(request: Request) -> Response:
        return answer(_described(session_of(request)))

    @app.get("/api/fleet/stream")
    def fleet(request: Request) -> Response:
        return following(request, answers.fleet())

    @app.get("/api/decisions/stream")
    def decisions(
        request: Request,
        pool: Text = "",
        model: Text = "",
        tenant: Text = "",
        level: Text = "",
        endpoint: Text = "",
        reason: Text = "",
    ) -> Response:
        return following(
            request,
            answers.decisions(
                DecisionFilter(pool=pool, model=model, tenant=tenant, level=level, endpoint=endpoint, reason=reason)
            ),
        )

    @app.get("/api/sessions/stream")
    def agent_sessions(
        request: Request, session: Text = "", tenant: Text = "", agent: Text = "", model: Text = ""
    ) -> Response:
        return following(request, answers.agent_sessions(WantedSessions(session, tenant, agent, model)))

    @app.get("/api/levels")
    async def levels(by: Text = "service_class,tenant,model", minutes: Minutes = 60) -> Response:
        names = tuple(name for name in level_rows.DIMENSIONS if name in by.split(","))
        since_ms = time.time_ns() // 1_000_000 - minutes * 60_000
        return answer(await answers.levels(AttainmentQuery(by=names, since_ms=since_ms)))

    @app.get("/api/decision")
    async def decision(id: Text = "", trace: Text = "") -> Response:  # noqa: A002 - as in the address
        return answer(await answers.decision(id, trace))

    @app.get("/api/usage")
    async def usage(by: Text = "day,tenant,model", since: Day = None, until: Day = None, tenant: Text = "") -> Response:
        names = tuple(name for name in DIMENSIONS if name in by.split(","))
        asked = UsageQuery(
            by=names,
            since=None if since is None else since.isoformat(),
            until=None if until is None else until.isoformat(),
            tenant=tenant or None,
        )
        return answer(await answers.usage(asked))

    @app.get("/api/engine-time")
    async def engine_time(by: Text = "tenant", since: Day = None, until: Day = None, tenant: Text = "") -> Response:
        asked = EngineTimeQuery(
            by=tuple(name for name in ENGINE_TIME_DIMENSIONS if name in by.split(",")),
            since=None if since is None else since.isoformat(),
            until=None if until is None else until.isoformat(),
            tenant=tenant or None,
        )
        return answer(await answers.engine_time(asked))

    @app.get("/api/limits")
    async def limits() -> Response:
        return answer(await answers.limits())

    @app.get("/api/batches")
    async def batches() -> Response:
        return answer(await answers.batches())

    @app.get("/api/configuration")
    async def revisions() -> Response:
        return answer(await answers.revisions())

    @app.get("/api/configuration/{number}")
    async def revision(number: int, against: int | None = None) -> Response:
        return answer(await answers.revision(number, against))

    @app.post("/api/configuration/rollback")
    async def rollback(request: Request, wanted: Annotated[WantedRevision, Body()]) -> Response:
        return answer(await answers.rollback(session_of(request), wanted.revision))

    @app.post(DRAIN)
    async def drain(request: Request, wanted: Annotated[WantedDrain, Body()]) -> Response:
        return answer(await answers.drain(_bearer(request), wanted))

    @app.post(DRY_RUN)
    async def dry_run(request: Request, tried: Annotated[TriedRequest, Body()]) -> Response:
        return answer(await answers.dry_run(_bearer(request), tried))

    @app.get("/api/regret")
    async def regret() -> Response:
        return answer(await answers.regret())

    @app.get("/api/results")
    async def results() -> Response:
        return answer(await answers.results())

    @app.get("/api/results/{name}")
    async def result(name: str) -> Response:
        return answer(await answers.result(name))

    def following(request: Request, events: Events) -> Response:
        own = session_of(request)
        return streams.stream_response(events, lambda: answers.still(own))

    return app


def _bearer(request: Request) -> str:
    """The key that a program shows; empty without one."""
    scheme, _, key = request.headers.get("authorization", "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" else ""


def session_of(request: Request) -> BrowserSession:
    """The session that `Door` found."""
    return cast("BrowserSession", request.scope["session"])


def answer(document: JsonValue, status: int = 200) -> Response:
    return Response(orjson.dumps(document), status, media_type="application/json")


def _described(session: BrowserSession) -> JsonValue:
    return {"name": session.right.name, "may_write": session.right.may_write, "csrf": session.csrf}


def _serve_page(app: FastAPI, path: str, document: str) -> None:
    @app.get(path, response_class=HTMLResponse)
    def page() -> HTMLResponse:  # pyright: ignore[reportUnusedFunction] - FastAPI's
        return HTMLResponse(document)
