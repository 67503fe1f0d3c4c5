"""The page of `penstock report`: complete, self-contained, escaped, and without secrets."""

import json
import re
from html.parser import HTMLParser

import pytest

from penstock.cli.graph_drawing import graph_svg
from penstock.cli.job_report import report_page
from penstock.cli.redaction import redacted, redacted_value
from tests.rest.served import program, started
from tests.runtime.dispatcher.service import Service

EVIL = "<script>alert(1)</script>&\"'"


class Page(HTMLParser):
    """Reads a page, and checks that its elements are closed in their order."""

    VOID = ("meta", "path", "rect")

    def __init__(self, text):
        super().__init__()
        self.open, self.seen, self.text, self.links = [], set(), [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.seen.add(tag)
        self.links += [value for name, value in attributes if name in ("src", "href", "srcset")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.seen.add(tag)

    def handle_endtag(self, tag):
        if tag not in self.VOID:
            assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def data(text="plain", **more):
    job = {
        "id": "3",
        "name": text,
        "state": "failed",
        "waiting": text,
        "submitted": 1.0,
        "started": 2.0,
        "ended": 3.0,
        "parallelism": 2,
        "slots": 2,
        "max_parallelism": 8,
        "restarts": 1,
        "last_snapshot": 5,
        "checkpoint_dir": text,
        "error": text,
    }
    snapshot = {
        "number": 5,
        "kind": text,
        "time": 2.5,
        "duration_ms": 1.0,
        "aligned_ms": 0.0,
        "bytes_new": 1,
        "bytes_total": 2,
        "log_records": 0,
    }
    failure = {"event": "failed", "time": 3.0, "user_traceback": text, "operator": text}
    figures = {
        "operators": [
            {
                "name": text,
                "uid": text,
                "parallelism": 1,
                "records_in": 1,
                "records_out": 2,
                "busy_seconds": 0.5,
                "blocked_seconds": 0.0,
                "watermark": None,
            }
        ],
        "loops": [{"name": text, "queued_records": 1}],
        "metrics": [{"operator": text, "name": text, "value": text}],
    }
    event = started(program())
    event["graph"]["vertices"][0]["name"] = text
    return {
        "written": 4.0,
        "job": job,
        "figures": figures,
        "snapshots": [snapshot],
        "failures": [failure],
        "graph": event["graph"],
        "config": {**event["config"], text: text},
        "events": [{"event": "note", "time": 1.0, "text": text}, {"event": text, "time": 1.0}],
        "log": text,
        "versions": {"Python": text},
        **more,
    }


def test_the_page_is_whole_and_every_text_is_escaped():
    text = report_page(data(EVIL))
    page = Page(text)
    assert not page.seen & {"script", "link", "img", "iframe", "object"} and page.links == []
    shown = "".join(page.text)
    # 1 title, 1 heading, and one in every section of the page.
    assert shown.count(EVIL) > 18
    assert "http" not in re.sub(r"http-equiv", "", text)


def test_the_page_of_a_job_of_which_nothing_is_known_has_its_sections():
    nothing = {"vertices": [], "edges": []}
    more = {"figures": {}, "snapshots": [], "failures": [], "graph": nothing, "config": {}}
    page = Page(report_page(data(events=[], log="", **more)))
    assert "".join(page.text).count("none") >= 8


def test_a_graph_is_drawn_in_columns_and_back_edges_are_dashed():
    vertex = {"parallelism": 2, "loop": None}
    vertices = [{**vertex, "id": i, "name": name} for i, name in enumerate("abc")]
    edges = [
        {"source": 0, "target": 1, "back_edge": False, "partitioning": "hash"},
        {"source": 1, "target": 2, "back_edge": False, "partitioning": "forward"},
        {"source": 2, "target": 1, "back_edge": True, "partitioning": "hash"},
    ]
    drawing = graph_svg({"vertices": vertices, "edges": edges})
    columns = [int(x) for x in re.findall(r'<rect x="(\d+)"', drawing)]
    assert columns == sorted(set(columns)) and len(columns) == 3
    assert drawing.count("stroke-dasharray") == 1


@pytest.mark.parametrize(
    "text",
    [
        "postgresql://ada:s3cret@db/jobs",
        "connect(host='db', password='s3cret', port=1)",
        '{"client_secret": "s3cret", "x": 1}',
        "SASL_PASSWORD=s3cret",
        "run job.py --api-token s3cret --x",
        "Authorization: Bearer s3cret-s3cret",
        "GET /?access_key=s3cret&x=1",
    ],
)
def test_secrets_are_removed_from_texts(text):
    assert "s3cret" not in redacted(text) and "***" in redacted(text)
    assert "s3cret" not in report_page(redacted_value(data(text, config={"name": text})))


def test_other_texts_stay_and_settings_are_judged_by_their_names():
    kept = ["the token of the request is wrong", "http://host:8081/v1", "a@b.example", "key 7"]
    assert list(map(redacted, kept)) == kept
    settings = {"password": "x", "token": None, "nested": [{"access_key_id": "x", "port": 1}]}
    assert redacted_value(settings) == {
        "password": "***",
        "token": None,
        "nested": [{"access_key_id": "***", "port": 1}],
    }


def test_a_report_is_written_with_and_without_the_service(tmp_path):
    service = Service(tmp_path)
    try:
        service.start()
        service.call("submit", "failing.py", "--param", "password=s3cret", code=1)
        output = tmp_path / "of-1.html"
        assert str(output) in service.here("report", "1", "-o", str(output))
        page = Page(output.read_text())
        shown = "".join(page.text)
        for part in ("ZeroDivisionError", "Source: Collection", "parallelism", "trio", "failing"):
            assert part in shown, part
        assert "s3cret" not in output.read_text() and "svg" in page.seen
        found = json.loads(service.here("report", "1", "--json"))
        assert found["failures"][0]["operator"] == "Map" and "Python" in found["versions"]
        assert "there is no job 9" in service.here("report", "9", code=1)
        service.kill()
        assert "ZeroDivisionError" in service.here("report", "1", "-o", "-")
        missing = str(tmp_path / "missing" / "page.html")
        assert "cannot be written" in service.here("report", "1", "-o", missing, code=1)
    finally:
        service.end()
