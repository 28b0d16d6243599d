"""Every command and program in a document is run, as a reader would run it.

A fenced `console` or `python` block is preceded by a comment that says how:

- `runs: stack`    with a gateway running, its address put in the place of the documented one
- `runs: engines`  with engines running, their addresses put in the place of the documented ones
- `runs: wrong.yaml`  in a folder with that file, which has a problem
- `tested: FILE`   a command that FILE in `tests` runs where it belongs
- `up`             the command that starts the gateway of `runs: stack`
- `ci`             by .ci/run
- `file: PATH`     the block is that file, which another test runs
"""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

import aiohttp
import pytest
import pytest_asyncio

from pointsman_testing import Processes, eventually
from pointsman_testing.processes import ServiceProcess

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"(?:<!-- (?P<how>[^>]*?) -->\n)?```(?P<kind>console|python)\n(?P<text>.*?)```", re.DOTALL)
ENDLESS: Final = ("watch", "up")
"""Commands of ours that run until Ctrl-C."""
DOCUMENTED_ID: Final = "req-0123456789ab-1"
DOCUMENTED_SESSION: Final = "8a5b-1"
START_S: Final = 180
RUN_BY_TESTS: Final = {
    "audit_faststream": "audit/test_audit.py",
    "audit_nats": "audit/test_audit.py",
    "regret_sums": "integration/test_regret.py",
    "stage_nats.py": "integration/test_extensions.py",
    "batch": "integration/test_batches.py",
    "work_faststream": "integration/test_batches_survive.py",
    "plugin": "integration/test_extensions.py",
}
"""The names of shown files in the test that runs them."""

pytestmark = pytest.mark.timeout(480)
in_one_loop = pytest.mark.asyncio(loop_scope="module")


class Block(NamedTuple):
    """One fenced block."""

    document: str
    number: int
    how: str
    kind: str
    text: str

    def commands(self) -> list[tuple[str, list[str]]]:
        """Each command of a console block and the output shown below it."""
        found: list[tuple[str, list[str]]] = []
        for line in self.text.replace("\\\n", " ").splitlines():
            if line.startswith("$ "):
                found.append((line.removeprefix("$ "), []))
            else:
                found[-1][1].append(line)
        return found


BLOCKS = [
    Block(path.relative_to(ROOT).as_posix(), number, (match["how"] or "").strip(), match["kind"], match["text"])
    for path in DOCUMENTS
    for number, match in enumerate(BLOCK.finditer(path.read_text()), start=1)
]


def _that(*how: str) -> pytest.MarkDecorator:
    chosen = [block for block in BLOCKS if block.how in how]
    return pytest.mark.parametrize("block", chosen, ids=[f"{block.document}-{block.number}" for block in chosen])


class Gateway(NamedTuple):
    """A running `pointsman up`."""

    process: ServiceProcess
    door: str
    nats: str


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    started = Processes(tmp_path_factory.mktemp("programs"))
    yield started
    started.end_all()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(programs: Processes, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Gateway]:
    """The gateway as the README starts it, on free ports and with the sample configuration."""
    [command] = [command for block in BLOCKS if block.how == "up" for command, _ in block.commands()]
    folder = tmp_path_factory.mktemp("gateway")
    options = ["--run-dir", str(folder), "--port", "0", "--nats-port", "0", "--config", str(ROOT / "pointsman.yaml")]
    process = programs.start_command([*_here(command).split(), *options])
    await eventually((folder / "state.json").exists, timeout=START_S)
    state = json.loads((folder / "state.json").read_text())
    started = Gateway(process, state["door"], state["nats"])
    traffic = asyncio.create_task(_traffic(started.door))
    yield started
    traffic.cancel()
    await asyncio.wait([traffic])


async def _traffic(door: str) -> None:
    """A request now and then, as there is in life; the first has the id that documents use."""
    body = {"model": "llama-3.1-8b", "prompt": "Count", "max_tokens": 2}
    session = {"x-session-id": DOCUMENTED_SESSION}
    headers = {"x-request-id": DOCUMENTED_ID, **session}
    # The loop stands still between tests, for longer than an idle connection lives, or one that waits for us to read.
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as http:
        while True:
            with suppress(aiohttp.ClientError):
                async with http.post(f"{door}/v1/completions", json=body, headers=headers) as answer:
                    await answer.read()
                if answer.status == 200:
                    headers = session
            await asyncio.sleep(0.3)


def _here(text: str) -> str:
    """Documented commands of the environment, wherever that is."""
    return text.replace(".venv/bin/", f"{Path(sys.executable).parent}/")


def _there(text: str, gateway: Gateway) -> str:
    return _here(text).replace("http://127.0.0.1:8080", gateway.door)


async def _run(command: str, folder: Path, env: Mapping[str, str]) -> tuple[int, str]:
    """The exit code and the output. One of our endless commands is ended, as by Ctrl-C, once it has said something."""
    environment = {**os.environ, **env, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    process = await asyncio.create_subprocess_exec(
        "bash", "-c", f"exec {command}", cwd=folder, env=environment,
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    assert process.stdout is not None
    output = b""
    try:
        async with asyncio.timeout(START_S):
            if any(f"pointsman {name}" in command for name in ENDLESS):
                while output.count(b"\n") < 3:
                    output += await process.stdout.readline()
                    assert not process.stdout.at_eof(), output.decode()
                process.send_signal(signal.SIGINT)
            output += await process.stdout.read()
            return await process.wait(), output.decode()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def test_every_block_says_how_it_is_run() -> None:
    known = re.compile(r"runs: (stack|engines|wrong\.yaml)|up|ci|file: \S+|tested: \S+")
    assert not [f"{block.document}: {block.text[:60]!r}" for block in BLOCKS if not known.fullmatch(block.how)]
    assert len(BLOCKS) > 8


@_that("ci")
def test_a_set_up_command_is_run_by_ci(block: Block) -> None:
    script = (ROOT / ".ci" / "run").read_text().splitlines()
    for command, _ in block.commands():
        assert command in script


@_that(*{block.how for block in BLOCKS if block.how.startswith("file: ")})
def test_a_shown_file_is_the_file(block: Block) -> None:
    path = ROOT / block.how.removeprefix("file: ")
    assert block.text.rstrip() == path.read_text().rstrip()
    assert any(name in path.as_posix() for name in RUN_BY_TESTS)
    if path.parent.name == "examples":
        assert f"`python examples/{path.name}` runs it" in (ROOT / block.document).read_text()


def test_a_test_runs_what_it_is_said_to_run() -> None:
    for name, test in RUN_BY_TESTS.items():
        assert name in (ROOT / "tests" / test).read_text()


@_that(*{block.how for block in BLOCKS if block.how.startswith("tested: ")})
def test_a_command_is_run_by_the_test_that_it_names(block: Block) -> None:
    test = (ROOT / "tests" / block.how.removeprefix("tested: ")).read_text()
    for command, _ in block.commands():
        assert ", ".join(f'"{word}"' for word in command.split()[1:]) in test


@in_one_loop
@_that("runs: stack")
async def test_it_works_with_a_running_gateway(block: Block, gateway: Gateway, tmp_path: Path) -> None:
    env = {"POINTSMAN_NATS_URL": gateway.nats}
    if block.kind == "python":
        program = tmp_path / "program.py"
        program.write_text(_there(block.text, gateway))
        code, output = await _run(f"{sys.executable} {program}", ROOT, env)
        assert (code, bool(output.strip())) == (0, True), output
        return
    for command, shown in block.commands():
        code, output = await _run(_there(command, gateway), ROOT, env)
        assert code == 0, f"{command}\n{output}"
        assert output.strip(), command
        for line in shown:
            assert line in output, f"{command}\n{output}"


@in_one_loop
@_that("runs: wrong.yaml")
async def test_a_wrong_file_is_reported_as_shown(block: Block, tmp_path: Path) -> None:
    (tmp_path / "wrong.yaml").write_text("pools:\n  llama-8b:\n    models: [m]\n    schedulling: fast\n")
    for command, shown in block.commands():
        code, output = await _run(_here(command), tmp_path, {})
        assert (code, output.splitlines()) == (1, shown)


@in_one_loop
@_that("runs: engines")
async def test_it_works_with_running_engines(block: Block, programs: Processes, tmp_path: Path) -> None:
    [(command, _)] = block.commands()
    for number, documented in enumerate(dict.fromkeys(re.findall(r"http://10\.\S+", command))):
        port_file = tmp_path / f"port-{number}"
        programs.start("pointsman-simulator", "serve", "--model", "qwen-72b", "--port-file", str(port_file))
        await eventually(port_file.exists)
        command = command.replace(documented, f"http://127.0.0.1:{port_file.read_text()}")
    options = ["--run-dir", str(tmp_path / "run"), "--port", "0", "--nats-port", "0"]
    process = programs.start_command([*_here(command).split(), *options])
    await eventually((tmp_path / "run" / "state.json").exists, timeout=START_S)
    await eventually(lambda: "qwen-72b" in process.log_text())
    assert await process.terminate() == 0


def test_every_linked_file_exists() -> None:
    for path in DOCUMENTS:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", path.read_text()):
            assert (path.parent / target).exists(), f"{path.relative_to(ROOT)} links to {target}"


def test_every_page_is_in_the_readme() -> None:
    readme = (ROOT / "README.md").read_text()
    assert [file.name for file in (ROOT / "docs").glob("*.md") if f"](docs/{file.name})" not in readme] == []


def test_every_decision_is_in_the_index() -> None:
    index = (ROOT / "docs" / "adr" / "README.md").read_text()
    assert [file.name for file in (ROOT / "docs" / "adr").glob("0*.md") if f"]({file.name})" not in index] == []


def test_the_reference_is_that_of_this_version() -> None:
    command = [str(Path(sys.executable).with_name("pointsman")), "config", "reference"]
    made = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert (ROOT / "docs" / "configuration-reference.md").read_text() == made, "run `make generate`"
