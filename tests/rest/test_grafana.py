"""The dashboard for Grafana asks for metrics that the API has."""

import json
import re
from pathlib import Path

from tests.rest.served import lived, served

FILE = Path(__file__).resolve().parents[2] / "examples" / "grafana.json"


def test_each_metric_of_the_dashboard_exists():
    dashboard = json.loads(FILE.read_text(encoding="utf-8"))
    asked = set(re.findall(r"penstock_\w+", json.dumps(dashboard["panels"])))
    assert len(asked) >= 12
    with served() as one:
        lived(one)
        text = one.ask("//metrics").body.decode()
    assert asked <= set(re.findall(r"^(penstock_\w+)", text, re.M))
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(ids)) == len(ids)
