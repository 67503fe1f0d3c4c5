"""Restarts and losses are reported with one text, on standard error and in `logging`, once."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock import StreamExecutionEnvironment
from penstock.cli.event_lines import EventLines
from penstock.dataflow.errors import JobError, ProtocolError
from penstock.dataflow.program import Program, RunOptions
from penstock.runtime.client.job_report import JobMonitor
from penstock.runtime.client.job_warnings import JobWarnings
from penstock.runtime.control.failures import describe, recreate
from penstock.runtime.control.warning_texts import WarningTexts
from penstock.runtime.dispatcher.job_registry import JobRecord, JobRegistry
from penstock.runtime.dispatcher.job_runner import JobRunner
from penstock.runtime.dispatcher.state_folder import StateFolder

TRACEBACK = "Traceback (most recent call last):\n  File 'job.py', line 3\nKeyError: 'b'\n"
ERROR = JobError("KeyError in operator 'Map'", operator="Map", record="7", user_traceback=TRACEBACK)

DROPPED = {"operator": "Window", "name": "numLateRecordsDropped", "kind": "counter", "value": 3}


def restarting(error: Any = ERROR, delay: float = 0.1) -> dict[str, Any]:
    return {"event": "restarting", "delay_seconds": delay, **describe(error)}


def text_of(texts: WarningTexts, event: dict[str, Any]) -> str:
    [text] = texts.texts(event)
    return text


@pytest.fixture
def root() -> Iterator[logging.Logger]:
    """The root logger without handlers, as in a program that has not configured logging."""
    logger = logging.getLogger()
    before, logger.handlers = logger.handlers, []
    yield logger
    for handler in logger.handlers:
        handler.close()
    logger.handlers = before


def test_the_cause_is_one_sentence_and_the_traceback_is_indented_below_it():
    assert text_of(WarningTexts(), restarting()).splitlines() == [
        "restarting in 0.1 s: KeyError in operator 'Map' (record: 7)",
        "    Traceback (most recent call last):",
        "      File 'job.py', line 3",
        "    KeyError: 'b'",
    ]


def test_the_message_of_an_error_of_the_engine_comes_before_its_traceback():
    text = text_of(WarningTexts(), restarting(ProtocolError(f"{TRACEBACK}a barrier came twice")))
    assert text.splitlines()[0] == "restarting in 0.1 s: a barrier came twice"


def test_a_failure_that_repeats_is_not_printed_in_full_again():
    texts = WarningTexts()
    first = text_of(texts, restarting()).splitlines()[0]
    sentence = first.removeprefix("restarting in 0.1 s: ")
    assert "'Map'" in sentence
    assert text_of(texts, restarting(delay=0.2)) == f"restarting in 0.2 s: as before: {sentence}"


def test_a_restart_names_its_snapshot_and_the_next_number():
    event = {"event": "restarted", "snapshot": 13, "next_number": 66, "seconds": 0.5}
    assert text_of(WarningTexts(), event) == (
        "restarted from snapshot 13 after 0.50 s; the next snapshot has the number 66"
    )


def test_an_error_survives_its_description():
    assert str(recreate(describe(ERROR))) == str(ERROR)


def test_restarts_are_on_standard_error_where_logging_is_not_configured(
    root: logging.Logger, capsys: pytest.CaptureFixture[str]
):
    JobWarnings(shown=False).handle(restarting())
    assert capsys.readouterr().err.count("KeyError in operator 'Map'") == 1


def test_restarts_are_in_logging_and_on_standard_error_once(
    root: logging.Logger, capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    root.addHandler(logging.FileHandler(tmp_path / "log"))
    JobWarnings(shown=False).handle(restarting())
    assert (tmp_path / "log").read_text().count("KeyError in operator 'Map'") == 1
    assert capsys.readouterr().err.count("KeyError in operator 'Map'") == 1
    root.addHandler(logging.StreamHandler(sys.stderr))
    JobWarnings(shown=False).handle(restarting())
    assert capsys.readouterr().err.count("KeyError in operator 'Map'") == 1


def test_the_lines_of_the_command_line_leave_restarts_to_logging_that_shows_them(
    root: logging.Logger,
):
    said: list[str] = []
    EventLines(said.append)(restarting())
    assert len(said) == 1
    root.addHandler(logging.StreamHandler(sys.stderr))
    EventLines(said.append)(restarting())
    assert len(said) == 1


@pytest.mark.parametrize("progress", [None, lambda _: None])
def test_a_program_reports_the_restarts_of_its_job(
    progress: Any,
    root: logging.Logger,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
):
    root.addHandler(caplog.handler)
    env = StreamExecutionEnvironment.get_execution_environment()
    program = Program(env._graph, env.config, [])
    monitor = JobMonitor(program, RunOptions(progress=progress), 0.0)
    monitor.handle(restarting())
    monitor.handle({"event": "giving_up", "reason": "the job failed 3 times"})
    monitor.handle({"event": "warning", "text": "the watermark stands still"})
    assert caplog.messages[-1] == "the watermark stands still"
    monitor.handle({"event": "finished", "metrics": [DROPPED]})
    levels = [record.levelname for record in caplog.records]
    assert levels == ["WARNING", "ERROR", "WARNING", "WARNING"]
    assert {record.name for record in caplog.records} == {"penstock.jobmanager"}
    # A progress display has its own lines.
    assert capsys.readouterr().err.count("giving up: ") == (progress is None)
    assert caplog.messages[-1].startswith("3 late records were dropped by 'Window'")


def test_a_submitted_job_that_is_restarted_shows_its_last_error(tmp_path: Path):
    folder = StateFolder(tmp_path / "home")
    folder.open()
    registry = JobRegistry(folder.jobs)
    record = JobRecord("1", "job")
    runner = JobRunner(record, registry, "INFO")
    runner.handle(restarting())
    assert record.error == "KeyError in operator 'Map' (record: 7)"
    assert record.restarts == 1
    assert "File 'job.py', line 3" in registry.log("1").read_text()
    runner.handle({"event": "finished", "stopped": False, "lineage": "", "metrics": [DROPPED]})
    assert record.error is None
    assert "3 late records were dropped by 'Window'" in registry.log("1").read_text()
    folder.close()
