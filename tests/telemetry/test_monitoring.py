"""The rules and the dashboard agree with one another, with the documentation, and with Prometheus."""

from __future__ import annotations

import re
import subprocess

import pytest
import yaml

from tests.telemetry.monitoring import METRIC, ROOT, RULES_TEST, program, queries, rules

DOCUMENTED = re.compile(r"^\| `((?:model:)?scoreline_[a-z_:]+)`", re.MULTILINE)
SERIES = re.compile(r"_(bucket|sum|count)$")


def documented() -> set[str]:
    return set(DOCUMENTED.findall((ROOT / "docs" / "observability.md").read_text()))


def used(expression: str) -> set[str]:
    """Return the metrics of an expression, as the documentation names them: a histogram without its parts."""
    found = METRIC.findall(expression)
    return {name if name in documented() else SERIES.sub("", name) for name in found}


def test_rules_and_dashboard_use_only_metrics_that_are_documented() -> None:
    for title, expression in [*queries(), *((rule.get("alert", "a record"), rule["expr"]) for rule in rules())]:
        assert used(expression) or "up{" in expression, title
        assert used(expression) <= documented(), title


def test_the_dashboard_shows_every_metric_of_the_service() -> None:
    shown = {name for _, expression in queries() for name in used(expression)}
    of_process = {name for name in documented() if name.startswith("scoreline_process_")}
    through_rules = {name for rule in rules() if "record" in rule for name in used(rule["expr"])}
    assert documented() - of_process - shown - through_rules == set()


def test_every_alert_is_documented_and_has_a_test_in_which_it_fires_and_one_in_which_it_does_not() -> None:
    alerts = {rule["alert"] for rule in rules() if "alert" in rule}
    text = (ROOT / "docs" / "observability.md").read_text()
    assert set(re.findall(r"^\| `(Scoreline\w+)`", text, re.MULTILINE)) == alerts
    cases = [
        (case["alertname"], bool(case["exp_alerts"]))
        for test in yaml.safe_load(RULES_TEST.read_text())["tests"]
        for case in test.get("alert_rule_test", ())
    ]
    assert {name for name, fires in cases if fires} == alerts
    assert {name for name, fires in cases if not fires} == alerts


def test_alerts_say_what_to_do() -> None:
    for rule in rules():
        if "alert" in rule:
            assert set(rule["annotations"]) == {"summary", "action"}, rule["alert"]
            assert rule["labels"]["severity"] in ("critical", "warning", "info")


@pytest.mark.parametrize(
    "arguments", [("check", "config", "prometheus.yml"), ("test", "rules", "rules_test.yml")], ids=["check", "test"]
)
def test_promtool_finds_the_configuration_sound_and_every_rule_as_expected(arguments: tuple[str, ...]) -> None:
    outcome = subprocess.run(
        [program("promtool"), *arguments], cwd=RULES_TEST.parent, capture_output=True, text=True, check=False
    )
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
