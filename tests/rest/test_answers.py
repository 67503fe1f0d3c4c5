"""What the endpoints answer: their shapes are in the document, their names are Flink's."""

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from penstock import SnapshotWriter
from penstock.rest.openapi import document
from penstock.runtime.client.shadow_run import ShadowReport
from penstock.runtime.shadow.comparison import SinkComparison, SourceComparison
from tests.rest.served import (
    RUNNING,
    TOKENS,
    Served,
    lived,
    program,
    served,
    snapshot,
    started,
    status,
)


@pytest.fixture
def one(tmp_path: Path) -> Iterator[Served]:
    with SnapshotWriter(tmp_path / "state", "words") as writer:
        writer.operator("upper").put("last", "a", ("A", 1))
    with served() as server:
        lived(server, str(tmp_path / "state"))
        yield server


def has_its_schema(path: str, method: str, code: int, value: Any) -> bool:
    described = document()["paths"][path][method]["responses"][str(code)]
    schema = described["content"]["application/json"]["schema"]
    whole = {**schema, "components": document()["components"]}
    errors = list(Draft202012Validator(whole).iter_errors(value))
    assert errors == []
    return True


def gets() -> list[str]:
    paths = document()["paths"]
    return [
        path
        for path, methods in paths.items()
        if "get" in methods
        and "application/json" in methods["get"]["responses"]["200"].get("content", {})
    ]


@pytest.mark.parametrize("path", gets())
def test_every_answer_has_the_shape_that_the_document_says(one: Served, path: str):
    trigger = one.of_job("/savepoints", method="POST").json["request-id"]
    if "shadow-runs" in path:
        request = one.state.request_shadow_run()
        sink = SinkComparison("out", "Sink", 2, None, 2, 0, ["a", "b"], [])
        source = SourceComparison("in", "Source", 2, 2)
        report = ShadowReport(4, 3, [source], [sink])
        request.report = {"equal": report.equal, **asdict(report)}
        trigger = request.id
    names = {"jobid": one.id, "vertexid": "1", "checkpointid": "2", "triggerid": trigger}
    names |= {"operator": "upper", "state": "last"}
    answer = one.ask("/" + path.format(**names))
    assert answer.status == 200, answer.body
    assert answer.headers["content-type"] == "application/json"
    assert has_its_schema(path, "get", 200, answer.json)
    missing = path.format(
        jobid="none", vertexid="0", checkpointid="0", triggerid="0", operator="o", state="s"
    )
    if missing != path:
        answer = one.ask("/" + missing)
        assert answer.status == 404
        assert has_its_schema(path, "get", 404, answer.json)
        assert answer.json["errors"] == ["there is no job none; GET /v1/jobs lists all"]


@pytest.mark.parametrize("path", gets())
def test_a_job_that_has_just_begun_has_answers_too(path: str):
    with served() as fresh:
        names = {"jobid": fresh.id, "vertexid": "0", "checkpointid": "2", "triggerid": "0"}
        names |= {"operator": "upper", "state": "last"}
        answer = fresh.ask("/" + path.format(**names))
        # A job without a snapshot has no state to show.
        assert answer.status in ((409,) if "/state" in path else (200, 404))
        assert has_its_schema(path, "get", answer.status, answer.json)


def test_a_job_is_listed_and_counted(one: Served):
    assert one.ask("/jobs").json == {"jobs": [{"id": one.id, "status": "RUNNING"}]}
    overview = one.ask("/overview").json
    assert (overview["jobs-running"], overview["taskmanagers"]) == (1, 2)
    job = one.ask("/jobs/overview").json["jobs"][0]
    assert (job["name"], job["tasks"]["total"], job["restarts"]) == ("words", 3, 1)


def test_a_job_shows_its_vertices_with_sums_over_subtasks(one: Served):
    job = one.of_job("").json
    assert [vertex["name"] for vertex in job["vertices"]] == [
        node["description"] for node in job["plan"]["nodes"]
    ]
    first, second = job["vertices"]
    assert first["metrics"]["write-records"] == 30
    assert second["metrics"]["read-records"] == 90
    assert second["operators"][0]["uid"] == "upper"
    assert job["plan"]["nodes"][1]["inputs"][0]["ship_strategy"] == "HASH"
    assert (job["pid"], job["worker-pids"]) == (7, [8, 9])


def test_subtasks_watermarks_and_backpressure_are_shown(one: Served):
    details = one.of_job("/vertices/1").json
    assert [row["metrics"]["read-records"] for row in details["subtasks"]] == [30, 60]
    pressure = one.of_job("/vertices/1/backpressure").json
    assert pressure["backpressureLevel"] == "ok"
    assert [row["subtask"] for row in pressure["subtasks"]] == [0, 1]
    found = one.of_job("/vertices/0/watermarks").json
    assert found == [{"id": "0.currentInputWatermark", "value": "1000"}]
    for bad in ("7", "x", "-1", "9" * 40):
        assert one.of_job(f"/vertices/{bad}").status == 404


def test_the_failures_of_a_job_are_listed_with_the_traceback_of_the_user(one: Served):
    history = one.of_job("/exceptions").json["exceptionHistory"]
    assert not history["truncated"]
    (failure,) = history["entries"]
    assert failure["stacktrace"] == "Traceback: it broke"
    assert (failure["taskName"], failure["record"], failure["attempt"]) == ("Upper", "'a'", 0)


def test_snapshots_are_counted_and_their_tasks_shown(one: Served, tmp_path: Path):
    found = one.of_job("/checkpoints").json
    counts = {"restored": 2, "total": 4, "in_progress": 1, "completed": 2, "failed": 1}
    assert found["counts"] == counts
    assert [entry["id"] for entry in found["history"]] == [5, 4, 3, 2]
    assert found["latest"]["savepoint"]["external_path"] == f"{tmp_path}/state/checkpoints/000004"
    assert found["latest"]["failed"]["failure_message"] == "a task declined"
    assert found["latest"]["restored"]["id"] == 1
    assert found["summary"]["state_size"]["avg"] == 150
    details = one.of_job("/checkpoints/details/2").json
    assert details["tasks"]["1"]["latest_ack_timestamp"] == 1_020
    rows = one.of_job("/checkpoints/details/2/subtasks/1").json["subtasks"]
    assert [row["index"] for row in rows] == [0, 1]
    assert (rows[1]["start_delay"], rows[1]["alignment"]["duration"]) == (14.5, 3.0)
    # The first row comes from a version that did not measure the capture.
    assert [row["checkpoint"]["sync"] for row in rows] == [0.0, 0.5]
    assert one.of_job("/checkpoints/details/77").status == 404


def test_the_settings_of_a_job_are_shown_without_the_values_of_its_parameters():
    of = program()
    of.config.job_parameters = {"password": "secret"}
    of.config.heartbeat_timeout_seconds = float("inf")
    with served() as one:
        one.report(started(of))
        answer = one.of_job("/config")
        assert answer.json["execution-config"]["user-config"] == {"password": "***"}
        assert answer.json["settings"]["heartbeat_timeout_seconds"] is None
        assert b"secret" not in answer.body


def test_metrics_have_flinks_names(one: Served):
    ids = {row["id"] for row in one.of_job("/metrics").json}
    assert {"numRestarts", "lastCheckpointDuration", "numberOfFailedCheckpoints"} <= ids
    values = one.of_job("/metrics?get=numRestarts,lastCheckpointSize,nothing").json
    assert values == [
        {"id": "numRestarts", "value": "1"},
        {"id": "lastCheckpointSize", "value": "100"},
    ]
    ids = {row["id"] for row in one.of_job("/vertices/1/metrics").json}
    assert {"0.busyTimeMsPerSecond", "1.Upper.numRecordsIn", "0.Upper.rate"} <= ids
    values = one.of_job("/vertices/1/metrics?get=0.Upper.topic=t1.topic.seen,0.Upper.level").json
    assert [row["value"] for row in values] == ["30", "high"]
    combined = one.of_job("/vertices/1/subtasks/metrics?get=numRecordsIn").json[0]
    assert (combined["min"], combined["max"], combined["sum"]) == (30, 60, 90)
    assert round(combined["skew"]) == 33


def test_the_metrics_for_prometheus_have_labels(one: Served):
    text = one.ask("//metrics").body.decode()
    labels = f'job_id="{one.id}",job_name="words"'
    assert f"penstock_jobmanager_job_numRestarts{{{labels}}} 1\n" in text
    seen = (
        f'penstock_taskmanager_job_task_operator_topic_seen{{{labels},operator_id="upper",'
        f'operator_name="Upper",subtask_index="0",task_id="1",'
    )
    assert seen in text
    assert 'topic="t1"' in text
    assert "lastCheckpointExternalPath" not in text and "high" not in text
    assert "# TYPE penstock_taskmanager_job_task_busyTimeMsPerSecond gauge" in text


# ---- orders


def test_a_savepoint_is_requested_and_found():
    with served() as one:
        one.report(started(program()), RUNNING)
        answer = one.of_job("/savepoints", method="POST", body={"formatType": "NATIVE"})
        assert answer.status == 202
        path = f"/savepoints/{answer.json['request-id']}"
        assert one.job.orders == ["savepoint"]
        assert one.of_job(path).json == {"status": {"id": "IN_PROGRESS"}}
        one.report(snapshot(1), snapshot(2, "savepoint"))
        assert one.of_job(path).json == {
            "status": {"id": "COMPLETED"},
            "operation": {"location": "/jobs/state/checkpoints/000002"},
        }


def test_a_stop_ends_with_a_final_snapshot_or_with_a_failure():
    with served() as one:
        one.report(started(program()), RUNNING)
        first = one.of_job("/stop", method="POST").json["request-id"]
        savepoint = one.of_job("/savepoints", method="POST").json["request-id"]
        one.report(snapshot(3, "final"), {"event": "finished", "stopped": True, "operators": []})
        found = one.of_job(f"/savepoints/{first}").json
        assert found["operation"]["location"] == "/jobs/state/checkpoints/000003"
        lost = one.of_job(f"/savepoints/{savepoint}").json
        assert "before it took the snapshot" in lost["operation"]["failure-cause"]["stack-trace"]
        assert one.of_job("/status").json == {"status": "FINISHED"}
        for path in ("/stop", "/savepoints"):
            answer = one.of_job(path, method="POST")
            assert answer.status == 409 and "does not run" in answer.json["errors"][0]


def test_a_cancelled_job_is_killed_and_shown_as_cancelled():
    with served() as one:
        one.report(started(program()), RUNNING)
        assert one.of_job("?mode=cancel", method="PATCH").status == 202
        assert one.job.orders == ["kill"]
        assert one.of_job("/status").json == {"status": "CANCELLING"}
        one.report(status(3), RUNNING)
        one.end()
        assert one.of_job("/status").json == {"status": "CANCELED"}
        assert one.of_job("", method="PATCH").status == 409


def test_a_job_whose_jobmanager_dies_has_failed():
    with served() as one:
        one.report(started(program()), RUNNING)
        one.end()
        assert one.of_job("/status").json == {"status": "FAILED"}
        failure = one.of_job("/exceptions").json["exceptionHistory"]["entries"][0]
        assert failure["message"] == "the JobManager process was killed by SIGKILL"


@pytest.mark.parametrize(
    ("path", "body", "code", "text"),
    [
        ("/savepoints", {"target-directory": "/tmp/x"}, 400, "penstock snapshots copy"),
        ("/savepoints", {"cancel-job": "yes"}, 400, "must be of type boolean"),
        ("/savepoints", {"formatType": "ODD"}, 400, "must be one of CANONICAL, NATIVE"),
        ("/savepoints", {"unknown": 1}, 400, "has no property 'unknown'"),
        ("/savepoints", [], 400, "must be of type object"),
        ("/savepoints", b"{", 400, "is not JSON"),
        ("/savepoints", b"\xff\xfe", 400, "is not JSON"),
        ("/savepoints", b"[" * 100_000, 400, "is not JSON"),
        ("/savepoints", b"9" * 10_000, 400, "is not JSON"),
        ("/stop", {"drain": True}, 400, "does not drain"),
        ("/rescale", {}, 400, "has no 'parallelism'"),
        ("/rescale", {"parallelism": True}, 400, "must be of type integer"),
        ("/rescale", {"parallelism": 0}, 400, "must be at least 1"),
        ("/rescale", {"parallelism": 129}, 400, "is at most 128"),
        ("/rescale", {"parallelism": 4}, 409, "--resume --parallelism 4"),
        ("/restart", None, 409, "--resume"),
    ],
)
def test_a_bad_order_is_refused_with_a_sentence(
    one: Served, path: str, body: Any, code: int, text: str
):
    answer = one.of_job(path, method="POST", body=body)
    assert answer.status == code
    assert text in answer.json["errors"][0]
    assert has_its_schema(f"/v1/jobs/{{jobid}}{path}", "post", code, answer.json)
    assert one.job.orders == []


def test_a_job_without_a_folder_takes_no_savepoints():
    of = program(checkpoint_dir=None)
    with served(of) as one:
        one.report(started(of), RUNNING)
        answer = one.of_job("/savepoints", method="POST")
        assert answer.status == 409 and "--checkpoint-dir" in answer.json["errors"][0]
        id = one.of_job("/stop", method="POST").json["request-id"]
        one.report(snapshot(1, "final"))
        operation = one.of_job(f"/savepoints/{id}").json["operation"]
        assert "nothing was kept" in operation["failure-cause"]["stack-trace"]


def test_the_figures_of_all_subtasks_are_in_one_answer(one: Served):
    figures = one.of_job("/figures").json
    assert (figures["state"], figures["restarts"]) == ("RUNNING", 1)
    assert figures["snapshots"] == [2, 1, 1]
    words, upper = figures["vertices"]
    assert (len(words["busy"]), len(upper["busy"])) == (1, 2)
    assert upper["records-in"][1] == pytest.approx(2 * upper["records-in"][0], rel=0.01)
    assert upper["queued"] == [3, 3]
    assert upper["operators"][0][0] == pytest.approx(sum(upper["records-in"]), rel=0.01)
    one.report({"event": "finished"})
    assert one.of_job("/figures").json["vertices"][1]["records-in"] == [0, 0]


def test_the_call_stacks_of_workers_are_an_answer_and_no_event(one: Served):
    assert one.of_job("/flamegraph", method="POST").status == 202
    assert one.job.orders == ["profile"]
    assert one.of_job("/flamegraph").json == {"workers": []}
    before = one.state.log.last
    profile = {"worker": 1, "pid": 9, "samples": 2, "frames": ["a", "b"], "stacks": [[2, 0, 1]]}
    one.job.put({"event": "stacks", **profile})
    next(one.reading)
    one.report({"event": "committed"})
    found = one.of_job("/flamegraph").json["workers"][0]
    assert found.pop("end-timestamp") > 0
    assert found == profile
    assert one.state.log.last == before + 1
    one.report({"event": "finished"})
    assert one.of_job("/flamegraph", method="POST").status == 409
    answer = one.of_job("/flamegraph", method="POST", token=TOKENS.read_only)
    assert answer.status == 403


def test_the_server_says_what_a_token_allows(one: Served):
    full, read_only = (
        one.ask("/config", token=token).json["features"]
        for token in (TOKENS.full, TOKENS.read_only)
    )
    # A program starts its jobs itself.
    assert full == {"web-submit": False, "web-cancel": True, "web-rescale": False}
    assert set(read_only.values()) == {False}


def test_the_figures_of_a_vertex_sum_up_those_of_its_subtasks(one: Served):
    def sums() -> dict[str, float]:
        rows = [row["metrics"] for row in one.of_job("/vertices/1").json["subtasks"]]
        summed: dict[str, float] = {}
        for name in rows[0]:
            values = [row[name] for row in rows]
            if name.endswith("-ratio"):
                summed[f"max-{name}"] = max(values)
            summed[name] = sum(values) / (len(values) if name.endswith("-ratio") else 1)
        return summed

    for _ in range(2):
        found = one.of_job("").json["vertices"][1]["metrics"]
        assert found == pytest.approx(sums(), rel=0.001, abs=0.001)
        one.report({"event": "finished"})
    with served() as fresh:
        fresh.report(started(program()))
        assert fresh.of_job("").json["vertices"][0]["metrics"]["idle-ratio"] == 1
