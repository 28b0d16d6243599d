"""Wiring of the console."""

import os
from functools import partial

from pointsman_console import handlers
from pointsman_console.adapters.agent_session_feed import AgentSessionFeed, agent_session_events
from pointsman_console.adapters.app import Answers, application
from pointsman_console.adapters.buckets import Buckets
from pointsman_console.adapters.decision_feed import decision_events
from pointsman_console.adapters.door import Door
from pointsman_console.adapters.drain_orders import DrainSender
from pointsman_console.adapters.fleet_feed import FleetFeed
from pointsman_console.adapters.keys import KeyBook
from pointsman_console.adapters.results import Results
from pointsman_console.adapters.rollback import Rollback
from pointsman_console.adapters.stream import Streams
from pointsman_console.adapters.window import window
from pointsman_console.domain.sessions import BrowserSession, OneTimeToken, Sessions
from pointsman_console.settings import ConsoleSettings
from pointsman_hosting.host import run
from pointsman_hosting.http_server import HttpServer
from pointsman_hosting.program import Program
from pointsman_hosting.service import Service


class BrowserServer(HttpServer):
    """Ends the streams first: they would last as long as browsers stay."""

    def __init__(self, door: Door, streams: Streams, settings: ConsoleSettings) -> None:
        super().__init__(door, settings.host, settings.port, grace_s=2.0)
        self._streams = streams

    async def stop(self) -> None:
        """Take no new connection, end the streams, let the rest end within the grace, close."""
        self._streams.end_streams()
        await super().stop()


def build(service: Service[ConsoleSettings]) -> None:
    """Construct everything; connect to nothing."""
    settings = service.settings
    # No service waits for a console, and it hears others only while a page is open.
    service.journeys.beats = False
    service.keeps_events = False
    token = settings.one_time_token
    sessions = Sessions(settings.session_s)
    keys = KeyBook(service.events)
    streams = Streams()
    view = window(settings, service.process)
    fleet = FleetFeed(view)
    results = Results(settings.results_dir)
    stored = handlers.StoredState(Buckets(service.events), Rollback(settings) if settings.writes else None)
    recorder = handlers.Recorder(service.bus)
    entrance = handlers.Entrance(
        sessions, keys, OneTimeToken(None if token is None else token.get_secret_value()), writes=settings.writes
    )

    engines = handlers.EngineOrders(entrance, DrainSender(settings) if settings.writes else None)

    async def still(session: BrowserSession) -> bool:
        return await door.is_session_valid(session)

    answers = Answers(
        log_in=entrance.log_in,
        log_out=entrance.log_out,
        still=still,
        fleet=lambda: handlers.fleet_events(fleet),
        decisions=partial(decision_events, view),
        agent_sessions=partial(agent_session_events, AgentSessionFeed(view)),
        levels=recorder.ask_attainment,
        decision=recorder.ask_story,
        usage=recorder.ask_usage,
        engine_time=recorder.ask_engine_time,
        limits=stored.read_limits,
        batches=stored.list_batches,
        revisions=stored.list_revisions,
        revision=stored.compare_revision,
        rollback=stored.roll_back,
        drain=engines.drain,
        dry_run=partial(recorder.try_request, entrance),
        regret=recorder.ask_regret,
        results=results.list_results,
        result=partial(handlers.result_of, results),
    )
    app = application(answers, streams, https=settings.https, lasts_s=settings.session_s)
    door = Door(app, sessions, keys, https=settings.https)
    service.serve(BrowserServer(door, streams, settings))


PROGRAM = Program("console", ConsoleSettings, build)


def main() -> int:
    """Run the service; returns its exit code."""
    # No request waits for the console: on a shared machine, the processes that serve requests go first.
    os.nice(5)
    return run(PROGRAM)
