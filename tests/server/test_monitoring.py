"""The board and the alert rules that ship with the documentation ask for metrics that a Hub has."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from kernels_hub.server.app import routes
from tests.running_hub import RunningHub

ASSETS = Path(__file__).parents[2] / "docs" / "assets"
OWN_OF_PROMETHEUS = {"up": {"instance"}}
OF_THE_SCRAPE = {"job", "instance"}
_SAMPLE = re.compile(r"^(\w+?)(?:\{(.*)\})? \S+$", re.MULTILINE)
_ASKED = re.compile(r"\b(kernels_hub_\w+|up)\b(?:\{([^}]*)\})?")
_MATCHER = re.compile(r'(\w+)(=~|!~|!=|=)"([^"]*)"')


def expressions() -> Iterator[tuple[str, str]]:
    """Where an expression stands, and the expression."""
    board = json.loads((ASSETS / "hub_grafana.json").read_text())
    for panel in board["panels"]:
        for target in panel["targets"]:
            yield f"panel {panel['title']}", target["expr"]
    for variable in board["templating"]["list"]:
        if variable["type"] == "query":
            yield f"variable {variable['name']}", variable["query"]["query"]
    for rule in rules():
        yield f"alert {rule['alert']}", rule["expr"]


def rules() -> list[dict[str, Any]]:
    document = yaml.safe_load((ASSETS / "hub_alerts.yml").read_text())
    return [rule for group in document["groups"] for rule in group["rules"]]


def problems(expression: str, known: dict[str, set[str]]) -> list[str]:
    """What an expression asks for that is not there: metrics, labels, and routes that a pattern finds none of."""
    found, names = [], set()
    templates = [route.template for route in routes()]
    for name, matchers in _ASKED.findall(expression):
        names |= known.get(name, set())
        if name not in known:
            found.append(f"metric {name}")
            continue
        for label, how, text in _MATCHER.findall(matchers):
            if label not in known[name] | OF_THE_SCRAPE:
                found.append(f"label {label} of {name}")
            if (
                label == "route"
                and how in ("=~", "!~")
                and not any(re.fullmatch(text, one) for one in templates)
            ):
                found.append(f"route {text}")
    for labels in re.findall(r"\bby \(([^)]*)\)", expression):
        found += [f"label {label}" for label in labels.split(", ") if label not in names | OF_THE_SCRAPE]
    if expression.count("(") != expression.count(")") or expression.count("{") != expression.count("}"):
        found.append("brackets")
    return found


@pytest.fixture(scope="module")
def known(server: RunningHub) -> dict[str, set[str]]:
    """Metric -> its labels, as a running Hub says them."""
    httpx.get(f"{server.endpoint}/api/kernels")
    found = dict(OWN_OF_PROMETHEUS)
    for name, labels in _SAMPLE.findall(httpx.get(f"{server.endpoint}/metrics").text):
        found.setdefault(name, set()).update(re.findall(r"(\w+)=", labels))
    return found


def test_every_metric_and_label_is_there(known: dict[str, set[str]]):
    asked = list(expressions())
    assert len(asked) > 15
    assert {where: wrong for where, expression in asked if (wrong := problems(expression, known))} == {}
    used = {name for _, expression in asked for name, _ in _ASKED.findall(expression)}
    assert {name for name in known if name.endswith(("_total", "_bucket"))} <= used, "and none is left out"


@pytest.mark.parametrize(
    ("expression", "wrong"),
    [
        ("rate(kernels_hub_answers_total[5m])", ["metric kernels_hub_answers_total"]),
        ('kernels_hub_requests_total{code="500"}', ["label code of kernels_hub_requests_total"]),
        ("sum by (le, path) (rate(kernels_hub_request_seconds_bucket[5m]))", ["label path"]),
        ('kernels_hub_requests_total{route=~".*/nowhere.*"}', ["route .*/nowhere.*"]),
        ("sum(rate(kernels_hub_sent_bytes_total[5m])", ["brackets"]),
    ],
)
def test_what_is_not_there_is_found(expression: str, wrong: list[str], known: dict[str, set[str]]):
    assert problems(expression, known) == wrong


def test_rules_say_what_to_do():
    for rule in rules():
        assert rule["labels"]["severity"] in ("page", "ticket")
        assert rule["for"] and all(rule["annotations"][key] for key in ("summary", "advice"))
    assert len({rule["alert"] for rule in rules()}) == len(rules()) >= 5


def test_the_board_is_one_that_grafana_takes():
    board = json.loads((ASSETS / "hub_grafana.json").read_text())
    assert board["uid"] and board["title"] and board["schemaVersion"] >= 39
    ids = [panel["id"] for panel in board["panels"]]
    assert len(set(ids)) == len(ids)
    taken = set()
    for panel in board["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken and max(x for x, _ in cells) < 24, panel["title"]
        taken |= cells
