"""The modules that a command loads."""

import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[3]


def test_a_check_of_a_configuration_loads_neither_bus_nor_server_nor_what_it_does_not_configure() -> None:
    dear = ("nats", "faststream", "aiohttp", "uvicorn", "fastapi", "grpc", "onnxruntime", "jwt", "jinja2", "tokenizers")
    code = (
        "import sys; from pathlib import Path; "
        "from pointsman_cli import app; from pointsman_cli.config import configuration; "
        "document, problems = configuration.check(Path('pointsman.yaml').read_text()); "
        f"print(problems, [name for name in {dear} if name in sys.modules])"
    )
    answer = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[] []"


def test_a_simulated_engine_loads_neither_zeromq_nor_tokenizers_which_few_engines_have() -> None:
    dear = ("zmq", "tokenizers", "jinja2", "pointsman_scheduler")
    code = (
        "import sys; from pointsman_simulator.__main__ import main; "
        "from pointsman_simulator.inference import ModelConfig; "
        "from pointsman_simulator.server import ServerConfig, SimulatedEngine; "
        f"SimulatedEngine(ServerConfig(ModelConfig(('m',)))); print([name for name in {dear} if name in sys.modules])"
    )
    answer = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"
