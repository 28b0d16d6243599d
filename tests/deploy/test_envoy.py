"""deploy/envoy/envoy.yaml is what `pointsman up --envoy` runs."""

from pathlib import Path

import yaml

from pointsman_cli.stack.envoy import document

CONFIG = Path(__file__).resolve().parents[2] / "deploy/envoy/envoy.yaml"
ENGINES = [("10.0.0.7", 8000), ("10.0.0.8", 8000)]


def test_the_documented_configuration_is_the_one_that_runs() -> None:
    """After a change of `pointsman_cli.stack.envoy`, write the document there again."""
    assert yaml.safe_load(CONFIG.read_text()) == document(("127.0.0.1", 8080), [("127.0.0.1", 9002)], ENGINES)
