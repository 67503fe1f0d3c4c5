"""How the logging configuration of a program reaches the processes of its job."""

import io
import logging
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from penstock import MapFunction, ProcessFunction, StreamExecutionEnvironment
from penstock.cli import main
from penstock.cli.options import JobOptions
from penstock.dataflow.errors import GraphError, JobError
from penstock.runtime.jobmanager.job_settings import JobOutcome
from penstock.runtime.jobmanager.reporting.job_events import (
    JobFinished,
    JobSnapshotAborted,
    JobSnapshotCompleted,
    JobStarted,
    Restarting,
    Resumed,
    WorkersStarted,
)
from penstock.runtime.jobmanager.reporting.job_log import JobLog
from penstock.runtime.user_code.current_operator import operator_at_work
from penstock.runtime.user_code.process_logging import (
    LoggingConfig,
    ProcessLogging,
    log_line,
    program_logging,
)
from tests.processes.harness import PATIENCE

ROOT = Path(__file__).resolve().parents[3]
TIME = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}"
LOGGER = logging.getLogger("tests.words")


class WithoutPytest(list):
    """The handlers of the root logger; pytest adds its own ones between fixture and test."""

    def append(self, handler):
        if not type(handler).__module__.startswith("_pytest"):
            super().append(handler)


@pytest.fixture(autouse=True)
def unconfigured(monkeypatch):
    """Let a test begin as a new process does: without handlers and levels of pytest."""
    monkeypatch.setattr(logging.root, "handlers", WithoutPytest())
    monkeypatch.delenv("PENSTOCK_LOG_LEVEL", raising=False)
    level = logging.root.level
    logging.root.setLevel(logging.WARNING)
    yield
    logging.root.setLevel(level)
    LOGGER.setLevel(logging.NOTSET)


class AtWork:
    name, subtask = "Shout", 3


def configured(format: str | None = None) -> io.StringIO:
    """Configure the root logger as a program does; returns what it writes."""
    stream = io.StringIO()
    logging.basicConfig(level=logging.INFO, stream=stream, format=format or logging.BASIC_FORMAT)
    return stream


# ---- what is shipped


def test_a_program_without_a_configuration_ships_none():
    assert program_logging(None).level is None
    assert program_logging(None).format is None


def test_the_levels_and_the_format_of_a_program_are_shipped():
    logging.basicConfig(level="DEBUG", format="{message}", style="{", datefmt="%H")
    LOGGER.setLevel(logging.ERROR)
    config = program_logging(None)
    assert config.level == logging.DEBUG and not config.explicit
    assert config.levels["tests.words"] == logging.ERROR
    assert (config.format, config.datefmt, config.style) == ("{message}", "%H", "{")


def test_the_format_that_basic_config_chooses_is_not_shipped():
    logging.basicConfig(level=logging.INFO)
    assert program_logging(None).format is None


def test_a_formatter_of_the_users_own_class_is_not_shipped():
    configured("%(message)s")
    logging.root.handlers[0].setFormatter(type("Mine", (logging.Formatter,), {})("%(message)s"))
    assert program_logging(None).format is None


def test_the_level_of_the_handler_of_the_terminal_is_shipped(tmp_path):
    logging.root.setLevel(logging.DEBUG)
    for handler in (logging.FileHandler(tmp_path / "log"), logging.StreamHandler()):
        logging.root.addHandler(handler)
    handler.setLevel(logging.ERROR)
    logging.root.handlers[0].close()
    assert program_logging(None).handler_level == logging.ERROR
    assert program_logging(logging.DEBUG).handler_level == logging.NOTSET


def test_the_defaults_of_a_formatter_are_shipped():
    defaults = {"operator": "-", "town": "Bern"}
    formatter = logging.Formatter("%(operator)s %(town)s %(message)s", defaults=defaults)
    configured()
    logging.root.handlers[0].setFormatter(formatter)
    assert program_logging(None).defaults == defaults


def test_a_format_with_attributes_of_the_programs_own_is_not_shipped():
    configured("%(town)s %(message)s")
    assert program_logging(None).format is None


def test_a_level_given_to_the_job_wins():
    configured()
    config = program_logging(logging.ERROR)
    assert config.level == logging.ERROR and config.explicit


def test_the_environment_takes_names_and_numbers_of_levels():
    env = StreamExecutionEnvironment.get_execution_environment()
    assert env.set_log_level("info").config.log_level == logging.INFO
    assert env.set_log_level(logging.DEBUG).config.log_level == logging.DEBUG
    with pytest.raises(GraphError, match="LOUD"):
        env.set_log_level("LOUD")


# ---- in a process of the job


@pytest.fixture(autouse=True)
def no_operator_at_work():
    """Forget the operator of a test before: tasks without an event loop of their own leave it."""
    operator_at_work.set(None)


def test_a_process_logs_lines_with_time_and_operator(capsys):
    with ProcessLogging("worker 3", 3) as logs:
        logs.configure(LoggingConfig(logging.INFO))
        LOGGER.info("outside")
        operator_at_work.set(AtWork())
        LOGGER.warning("inside")
        operator_at_work.set(None)
    outside, inside = capsys.readouterr().err.splitlines()
    assert re.fullmatch(rf"{TIME} INFO  tests.words \[worker 3\]: outside", outside)
    where = re.escape("[operator 'Shout' (subtask 3)]")
    assert re.fullmatch(rf"{TIME} WARNING tests.words {where}: inside", inside)
    assert logging.root.handlers == [] and logging.root.level == logging.WARNING


def test_a_format_of_the_program_may_have_operator_and_subtask(capsys):
    with ProcessLogging("worker 3", 3) as logs:
        logs.configure(LoggingConfig(logging.INFO, format="%(operator)s %(subtask)s %(message)s"))
        LOGGER.info("outside")
        LOGGER.info("mine", extra={"operator": "given"})
        operator_at_work.set(AtWork())
        LOGGER.info("inside")
        operator_at_work.set(None)
    assert capsys.readouterr().err == "- 3 outside\ngiven 3 mine\nShout 3 inside\n"


def test_a_process_leaves_the_configuration_of_an_imported_module(capsys):
    stream = configured("%(operator)s %(message)s")
    with ProcessLogging("worker 0", 0) as logs:
        logs.configure(LoggingConfig(logging.ERROR))
        LOGGER.info("kept")
    assert stream.getvalue() == "- kept\n" and capsys.readouterr().err == ""


def test_a_configuration_made_in_open_wins():
    stream = io.StringIO()
    with ProcessLogging("worker 0", 0) as logs:
        logs.configure(LoggingConfig(logging.ERROR))
        logging.basicConfig(
            level=logging.INFO, stream=stream, format="%(subtask)s %(message)s", force=True
        )
        logs.adopt()
        LOGGER.info("forced")
    assert stream.getvalue() == "0 forced\n"


def test_the_levels_of_other_loggers_are_set(capsys):
    with ProcessLogging("worker 0", 0) as logs:
        logs.configure(LoggingConfig(logging.DEBUG, levels={"tests.words": logging.ERROR}))
        LOGGER.warning("lost")
        LOGGER.error("shown")
    said = capsys.readouterr().err
    assert "lost" not in said and said.endswith("shown\n") and LOGGER.level == logging.NOTSET


def test_the_level_of_the_service_is_for_jobs_without_one(monkeypatch, capsys):
    monkeypatch.setenv("PENSTOCK_LOG_LEVEL", "INFO")
    for level in (None, logging.ERROR):
        with ProcessLogging("worker 0", 0) as logs:
            logs.configure(LoggingConfig(level))
            LOGGER.info("at level %s", level)
    assert capsys.readouterr().err.endswith("at level None\n")


def test_the_command_line_passes_the_level_on(monkeypatch, tmp_path):
    seen = []
    service = lambda *arguments: seen.append(arguments) or SimpleNamespace(run=None)  # noqa: E731
    monkeypatch.setattr("penstock.runtime.dispatcher.dispatcher.Dispatcher", service)
    monkeypatch.setattr("trio.run", lambda _: None)
    for arguments in (["--log-level", "debug"], []):
        CliRunner().invoke(main, ["jobmanager", "--dir", str(tmp_path), *arguments])
    assert [arguments[4] for arguments in seen] == ["DEBUG", "INFO"]
    command = JobOptions("run", "job.py", log_level="DEBUG").resume_command()
    assert command == "penstock run job.py --log-level DEBUG --resume"


def test_a_line_of_the_service_looks_like_one_of_the_job_manager():
    line = log_line(logging.ERROR, "penstock.jobmanager", "JobManager", "it failed")
    assert re.fullmatch(rf"{TIME} ERROR penstock.jobmanager \[JobManager\]: it failed", line)


# ---- the life of a job


def test_the_life_of_a_job_is_logged():
    stream = configured("%(levelname)s %(message)s")
    logging.root.setLevel(logging.DEBUG)
    log = JobLog("words")
    log.record(JobStarted(7, [], {}, {}))
    log.record(Resumed(4, "", 0))
    log.record(WorkersStarted([8, 9]))
    log.record(JobSnapshotCompleted({"number": 5, "duration_ms": 12.3}, []))
    log.record(JobSnapshotAborted(6, "the disk is full"))
    log.record(Restarting(JobError("it broke"), 0.1))
    log.record(WorkersStarted([10, 11]))
    log.record(JobFinished(JobOutcome(True, [], [], [], "", [], [], {})))
    assert stream.getvalue().splitlines() == [
        "INFO job 'words' starts (pid 7)",
        "INFO job 'words' resumes from snapshot 4",
        "INFO attempt 1 runs on workers (pids 8, 9)",
        "DEBUG snapshot 5 is complete after 12 ms",
        "WARNING snapshot 6 was aborted: the disk is full",
        "INFO attempt 2 runs on workers (pids 10, 11)",
        "INFO job 'words' was stopped",
    ]


def test_a_snapshot_whose_abortion_the_client_shows_is_no_second_warning():
    stream = configured("%(levelname)s %(message)s")
    JobLog("words", shown=True).record(JobSnapshotAborted(6, "no space"))
    assert stream.getvalue() == "INFO snapshot 6 was aborted: no space\n"


# ---- whole jobs


class Shout(MapFunction):
    """Logs in all of its methods."""

    def open(self, context):
        LOGGER.info("opens")

    def map(self, value):
        LOGGER.info("got %s", value)
        return value.upper()

    def close(self):
        LOGGER.info("closes")


def test_in_one_process_the_handlers_of_the_program_know_the_operator():
    stream = configured("%(name)s %(operator)s %(subtask)s %(message)s")
    before = list(logging.root.handlers)
    env = StreamExecutionEnvironment.get_execution_environment()
    words = env.from_collection(["one"]).map(Shout()).name("Shout")
    assert list(words.execute_and_collect(in_process=True)) == ["ONE"]
    lines = [line for line in stream.getvalue().splitlines() if line.startswith("tests.words")]
    assert f"attempt 1 runs on workers (pids {os.getpid()})" in stream.getvalue()
    assert lines == [f"tests.words Shout 0 {text}" for text in ("opens", "got one", "closes")]
    assert logging.root.handlers == before and before[0].filters == []


class Bye(ProcessFunction):
    """Logs where it ends."""

    def process_element(self, value, ctx):
        yield value

    def end_input(self, ctx):
        LOGGER.info("ends")
        yield "bye"
        LOGGER.info("has ended")


def read(subtask, parallelism):
    LOGGER.info("reads")
    yield "one"


def key(word):
    LOGGER.info("finds a key")
    return word


def test_sources_hooks_and_key_selectors_are_logged_with_their_operators():
    stream = configured("%(name)s %(operator)s: %(message)s")
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(2)
    words = env.from_iterable(read).name("Read").process(Bye()).name("Bye")
    counts = words.key_by(key).map(lambda word: word).name("After")
    assert sorted(counts.execute_and_collect(in_process=True)) == ["bye", "bye", "one", "one"]
    found = {line[12:] for line in stream.getvalue().splitlines() if line.startswith("tests.wor")}
    expected = {"Read: reads", "Bye: finds a key", "Bye: ends", "Bye: has ended"}
    assert found == expected


JOB = """
import logging
from penstock import StreamExecutionEnvironment

logging.basicConfig(level=logging.INFO)
logger = logging.getLogger("words")


def shout(word):
    logger.info("got %s", word)
    logger.debug("returns")
    return word.upper()


env = StreamExecutionEnvironment.get_execution_environment()
env.from_collection(["one"]).map(shout).name("Shout").print()
env.execute("logged")
"""


def test_what_functions_log_comes_out_of_the_workers(tmp_path: Path):
    (tmp_path / "job.py").write_text(JOB)
    commands = [["job.py"], ["-m", "penstock", "run", "--log-level", "debug", "job.py"]]
    where = re.escape("words [operator 'Shout' (subtask 0)]")
    for command, wanted in zip(commands, (False, True), strict=True):
        done = subprocess.run(
            [sys.executable, *command],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines() == ["ONE"]
        said = done.stderr
        assert re.search(rf"^{TIME} INFO  {where}: got one$", said, re.M), said
        assert re.search(r"INFO  penstock.jobmanager \[JobManager\]: job 'logged' starts", said)
        assert bool(re.search(rf"DEBUG {where}: returns$", said, re.M)) is wanted, said
