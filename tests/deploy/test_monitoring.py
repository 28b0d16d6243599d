"""Prometheus, its alerts and the dashboard: every expression parses and asks for series that exist."""

import json
import re
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
REFERENCE = (ROOT / "docs/metrics.md").read_text(encoding="utf-8")
PROMETHEUS: dict[str, Any] = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text(encoding="utf-8"))
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
BUNDLED: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.bundle.yml").read_text(encoding="utf-8"))
DASHBOARD: dict[str, Any] = json.loads((ROOT / "deploy/grafana/pointsman.json").read_text(encoding="utf-8"))
RULES: list[dict[str, Any]] = [
    rule
    for group in yaml.safe_load((ROOT / "deploy/prometheus/alerts.yml").read_text(encoding="utf-8"))["groups"]
    for rule in group["rules"]
]

FROM_PROMETHEUS = frozenset({"instance", "job", "service"})
OF_OTHERS = {
    "up": FROM_PROMETHEUS,
    "process_cpu_seconds_total": FROM_PROMETHEUS,
    "process_resident_memory_bytes": FROM_PROMETHEUS,
}
_ROW = re.compile(r"^\| `(\w+)` \| (counter|gauge|histogram) \| ([^|]*) \|", re.MULTILINE)


def documented() -> dict[str, frozenset[str]]:
    """Series of docs/metrics.md and their labels."""
    found = dict(OF_OTHERS)
    for name, kind, labels in _ROW.findall(REFERENCE):
        names = frozenset(re.findall(r"`(\w+)`", labels)) | FROM_PROMETHEUS
        if kind == "histogram":
            found |= {f"{name}_bucket": names | {"le"}, f"{name}_sum": names, f"{name}_count": names}
        else:
            found[name] = names
    return found


def expressions() -> dict[str, str]:
    """Every expression, by where it stands."""
    found = {f"alert {rule['alert']}": str(rule["expr"]) for rule in RULES}
    for panel in DASHBOARD["panels"]:
        for number, target in enumerate(panel.get("targets", [])):
            found[f"panel {panel['title']} {number}"] = str(target["expr"])
    for annotation in DASHBOARD["annotations"]["list"]:
        found[f"annotation {annotation['name']}"] = str(annotation["expr"])
    return {
        where: re.sub(r"\$__(rate_)?interval", "1m", text).replace("$pool", ".*").replace("$model", ".*")
        for where, text in found.items()
    }


EXPRESSIONS = expressions()


def nodes(expression: promql_parser.Expr) -> list[promql_parser.Expr]:
    """The expression and everything in it."""
    found: list[promql_parser.Expr] = []
    promql_parser.walk(expression, pre_visit=found.append)
    return found


def selectors(expression: promql_parser.Expr) -> list[promql_parser.VectorSelector]:
    """Every selector of series in the expression."""
    inner = nodes(expression)
    plain = [node for node in inner if isinstance(node, promql_parser.VectorSelector)]
    return plain + [node.vector_selector for node in inner if isinstance(node, promql_parser.MatrixSelector)]


@pytest.mark.parametrize("where", EXPRESSIONS)
def test_an_expression_parses_and_asks_for_series_and_labels_that_exist(where: str) -> None:
    expression = promql_parser.parse(EXPRESSIONS[where])
    series = documented()
    for selector in selectors(expression):
        assert selector.name in series, f"docs/metrics.md has no {selector.name}"
        matched = {matcher.name for matcher in selector.matchers.matchers}
        assert matched <= series[selector.name], f"{selector.name} has no {matched - series[selector.name]}"
    for node in nodes(expression):
        if isinstance(node, promql_parser.AggregateExpr) and node.modifier is not None:
            for selector in selectors(node):
                grouped = set(node.modifier.labels)
                assert grouped <= series[selector.name or ""], f"{selector.name} has no {grouped}"


def test_completions_are_never_added_up_over_collectors() -> None:
    """Each collector counts every completion; a sum over instances would count them twice."""
    shared = (
        "pointsman_requests",
        "pointsman_attempts",
        "pointsman_tokens",
        "pointsman_request_",
        "pointsman_agent_prompt",
    )
    for where, text in EXPRESSIONS.items():
        for node in nodes(promql_parser.parse(text)):
            if isinstance(node, promql_parser.Call) and node.func.name == "rate":
                name = selectors(node)[0].name or ""
                assert not name.startswith(shared) or f"instance) (rate({name}" in text, where


def test_every_alert_says_what_is_wrong_and_how_bad_it_is() -> None:
    assert len({rule["alert"] for rule in RULES}) == len(RULES) >= 8
    for rule in RULES:
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert str(rule["annotations"]["summary"]).endswith(".")


def test_prometheus_scrapes_every_service_and_every_engine() -> None:
    built = {name: service for name, service in COMPOSE["services"].items() if "build" in service}
    ours = {name for name, service in built.items() if "POINTSMAN_HTTP_PORT" in service.get("environment", {})}
    engines = {name for name, service in built.items() if "--port=8000" in service.get("command", [])}
    jobs = {job["job_name"]: job["dns_sd_configs"][0] for job in PROMETHEUS["scrape_configs"]}
    bundles = BUNDLED["services"].keys() - built
    assert set(jobs["pointsman"]["names"]) == ours - {"configuration"} | bundles
    assert {str(jobs["pointsman"]["port"])} == {
        COMPOSE["services"][name]["environment"]["POINTSMAN_HTTP_PORT"] for name in ours - {"configuration"}
    }
    assert set(jobs["engines"]["names"]) == engines
    assert PROMETHEUS["rule_files"] == ["alerts.yml"]
    assert "./deploy/prometheus:/etc/prometheus:ro" in COMPOSE["services"]["prometheus"]["volumes"]


def test_the_dashboard_is_the_one_that_grafana_is_given() -> None:
    provisioning = ROOT / "deploy/grafana/provisioning"
    datasource = yaml.safe_load((provisioning / "datasources/prometheus.yml").read_text())["datasources"][0]
    assert datasource["url"] == "http://prometheus:9090"
    folder = yaml.safe_load((provisioning / "dashboards/pointsman.yml").read_text())["providers"][0]["options"]["path"]
    mounts = [str(volume) for volume in COMPOSE["services"]["grafana"]["volumes"]]
    assert f"./deploy/grafana/pointsman.json:{folder}/pointsman.json:ro" in mounts
    variables = {variable["name"]: variable for variable in DASHBOARD["templating"]["list"]}
    assert variables["datasource"]["current"]["value"] == datasource["uid"]
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(ids) == len(set(ids))


def test_the_adapter_of_prometheus_gives_every_metric_that_autoscalers_ask_for() -> None:
    text = (ROOT / "deploy/k8s/overlays/complete/pointsman.yaml").read_text(encoding="utf-8")
    manifests = yaml.load_all(text, yaml.CSafeLoader)
    rules = yaml.safe_load((ROOT / "deploy/prometheus/adapter.yaml").read_text())["rules"]
    custom = " ".join(rule["seriesQuery"] for rule in rules["custom"])
    asked = {
        metric["pods"]["metric"]["name"]
        for scaler in manifests
        if scaler is not None and scaler["kind"] == "HorizontalPodAutoscaler"
        for metric in scaler["spec"]["metrics"]
        if metric["type"] == "Pods"
    }
    assert asked
    assert [name for name in asked if name not in custom] == []
    documented = (ROOT / "docs/metrics.md").read_text()
    for rule in (*rules["custom"], *rules["external"]):
        for name in re.findall(r"pointsman_\w+", rule["seriesQuery"]):
            assert f"`{name}`" in documented
