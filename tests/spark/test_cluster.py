"""Jobs on a real Spark cluster: two executors, each a process with one slot."""

import os
import re
import signal
import sys
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
import trio
from pyspark.sql import SparkSession

from penstock import (
    FileSink,
    GraphError,
    JobError,
    StoreError,
    StreamExecutionEnvironment,
)
from penstock.connectors.spark import SparkTableSink
from penstock.connectors.spark.active_session import spark_session
from penstock.dataflow.program import RunOptions, current_options, run_options
from penstock.runtime.spark import SESSION_SETTINGS, SparkCluster, barrier_stage, preflight
from penstock.runtime.spark.barrier_stage import BarrierStageLauncher
from penstock.runtime.spark.cluster import JobThread
from penstock.runtime.system.launcher import WorkerSpec
from penstock.runtime.system.transport import SocketTransport
from tests.processes.harness import (
    Settings,
    committed,
    counting_job,
    expected_words,
    lost_and_doubled,
    wait_until,
)
from tests.processes.parts import let_go
from tests.spark.conftest import JAVA_OPTIONS, WARM


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    folder = tmp_path_factory.mktemp("spark")
    session = spark_session(
        {
            **SESSION_SETTINGS,
            **WARM,
            "spark.executor.extraJavaOptions": JAVA_OPTIONS,
            "spark.local.dir": str(folder / "local"),
            "spark.sql.warehouse.dir": str(folder / "warehouse"),
            "spark.log.level": "OFF",
        },
        master="local-cluster[2,1,1024]",
    )
    trio.run(preflight.await_slots, session, 2)
    yield session
    session.stop()


class Events:
    """Keeps the events of a job, and has something done once it has so many snapshots.

    Arguments:
        actions: what to do, by the number of complete snapshots.
    """

    def __init__(self, actions: dict[int, Any] | None = None) -> None:
        self.actions = dict(actions or {})
        self.all: list[dict[str, Any]] = []
        self.snapshots = 0

    def __call__(self, event: dict[str, Any]) -> None:
        self.all.append(event)
        self.snapshots += event["event"] == "snapshot"
        due = self.actions.pop(self.snapshots, None)
        if due is not None:
            due(self)

    @property
    def pids(self) -> list[list[int]]:
        """The workers of each attempt."""
        return [event["pids"] for event in self.all if event["event"] == "workers"]


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def kill_worker(events: Events) -> None:
    os.kill(events.pids[-1][0], signal.SIGKILL)


def kill_executor(events: Events) -> None:
    # A worker was forked by Spark's daemon, which is a child of the executor.
    executor = parent(parent(events.pids[-1][1]))
    assert "CoarseGrainedExecutorBackend" in Path(f"/proc/{executor}/cmdline").read_text()
    os.kill(executor, signal.SIGKILL)


def run(env: StreamExecutionEnvironment, cluster: SparkCluster, progress: Any = None) -> Any:
    with run_options(RunOptions(progress=progress)), cluster:
        return env.execute("counting")


def test_killed_workers_and_executors_lose_and_double_nothing(spark: SparkSession, tmp_path: Path):
    settings = Settings(tmp_path, count=30_000, parts=3)

    class Killing(Events):
        def __call__(self, event: dict[str, Any]) -> None:
            super().__call__(event)
            # Spark may take a while to notice a dead process. Until then, no kill has happened.
            if event["event"] == "workers" and len(self.pids) > 1:
                let_go(settings.gate)

    events = Killing({3: kill_worker, 12: kill_executor})
    result = run(counting_job(settings), SparkCluster(spark), events)
    found = lost_and_doubled(committed(settings.output), expected_words(settings))
    assert found == (0, 0)
    assert len(result.restarts) == 2, result.restarts
    for restart in result.restarts:
        # Spark tells of it, or the worker's own connection does, whichever is first.
        assert re.search("Spark stage failed|lost its connection", restart["cause"]), restart
    # None of any attempt is left, and the JobManager was this process.
    assert len({pid for pids in events.pids for pid in pids}) == 6
    for pids in events.pids:
        for pid in pids:
            wait_until(lambda pid=pid: not alive(pid), f"worker {pid} has ended")
    assert next(e for e in events.all if e["event"] == "started")["pid"] == os.getpid()


def test_what_workers_print_reaches_the_driver_and_records_are_collected(
    spark: SparkSession, capfd: pytest.CaptureFixture[str]
):
    def told(i: int) -> int:
        print(f"out {i}")
        print(f"err {i}", file=sys.stderr)
        os.write(2, b"below Python\n")
        return i * 10

    with SparkCluster(spark, slots=2) as cluster:
        assert current_options().parallelism == 2
        env = StreamExecutionEnvironment.get_execution_environment()
        records = env.from_sequence(1, 3).map(told).execute_and_collect()
        assert sorted(records) == [10, 20, 30]
        assert cluster.session is spark
    assert current_options().executor is None
    captured = capfd.readouterr()
    for i in (1, 2, 3):
        assert f"out {i}\n" in captured.out
        assert f"err {i}\n" in captured.err
    assert captured.err.count("below Python\n") == 3


def test_python_files_and_archives_travel_to_executors(spark: SparkSession, tmp_path: Path):
    (tmp_path / "sent_factor.py").write_text("FACTOR = 7\n")
    with zipfile.ZipFile(tmp_path / "models.zip", "w") as archive:
        archive.writestr("words.txt", "to be")
    (tmp_path / "wanted.txt").write_text("trio\n")

    def see(number: int) -> Any:
        import sent_factor

        text = Path("models/words.txt").read_text()
        return number * sent_factor.FACTOR, text, Path(sent_factor.__file__).parent != tmp_path

    env = StreamExecutionEnvironment.get_execution_environment()
    env.add_python_file(tmp_path / "sent_factor.py")
    env.add_python_archive(tmp_path / "models.zip", "models")
    env.set_python_requirements(tmp_path / "wanted.txt")
    env.set_python_executable(sys.executable)
    before = Path.cwd(), list(sys.path)
    with SparkCluster(spark, slots=2):
        records = env.from_sequence(1, 2).map(see).execute_and_collect()
        assert sorted(records) == [(7, "to be", True), (14, "to be", True)]
        assert (Path.cwd(), sys.path) == before
        env.set_python_executable("/opt/other/python")
        with pytest.raises(GraphError, match=r"and the job wants /opt/other/python: Spark starts"):
            env.from_collection([1]).print()
            env.execute()


def test_the_users_own_traceback_comes_first(spark: SparkSession):
    env = StreamExecutionEnvironment.get_execution_environment()
    env.from_collection([4, 0]).map(lambda i: 8 // i).name("divide").print()
    with pytest.raises(JobError) as caught:
        run(env, SparkCluster(spark))
    text = str(caught.value)
    assert text.startswith("Traceback") and "lambda i: 8 // i" in text.splitlines()[2]
    assert caught.value.operator == "divide" and caught.value.record == "0"


def test_a_worker_executes_no_job(spark: SparkSession):
    def execute(number: int) -> Any:
        inner = StreamExecutionEnvironment.get_execution_environment()
        return number, inner.from_sequence(1, 3).execute_and_collect()

    env = StreamExecutionEnvironment.get_execution_environment()
    env.from_collection([1]).map(execute).print()
    with SparkCluster(spark), pytest.raises(JobError, match="of its own in a worker process"):
        env.execute()


def test_a_job_that_is_killed_leaves_no_worker_and_one_that_is_stopped_resumes(
    spark: SparkSession, tmp_path: Path
):
    settings = Settings(tmp_path, count=30_000, parts=3)

    def started(resume: str | None = None) -> JobThread:
        env = counting_job(settings)
        options = RunOptions(resume=resume)
        return SparkCluster(spark).start(env._program("counting"), options)

    def after(job: JobThread, snapshots: int) -> Events:
        events = Events()
        for event in job.events():
            events(event)
            if events.snapshots == snapshots:
                let_go(settings.gate)
                return events
        raise AssertionError(events.all)

    killed = started()
    events = after(killed, 3)
    killed.kill()
    assert killed.wait() == "was killed"
    for pid in events.pids[0]:
        wait_until(lambda pid=pid: not alive(pid), f"worker {pid} has ended")
    stopped = started("newest")
    after(stopped, 3)
    stopped.stop()
    rest = list(stopped.events())
    assert stopped.wait() == "ended", rest
    # What a job stands at is told now and then, and so perhaps once more behind its end.
    [last] = [event for event in rest if event["event"] != "status"][-1:]
    assert last["event"] == "finished" and last["stopped"], rest
    with run_options(RunOptions(resume="newest")), SparkCluster(spark):
        counting_job(settings).execute("counting")
    found = lost_and_doubled(committed(settings.output), expected_words(settings))
    assert found == (0, 0)


# ---- what is refused before anything starts


def a_job(folder: Path, parallelism: int = 2) -> StreamExecutionEnvironment:
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(parallelism)
    env.from_sequence(1, 10).map(str).sink_to(FileSink(folder / "out"))
    return env


def refusal(env: StreamExecutionEnvironment, cluster: SparkCluster, kind: Any) -> str:
    events = Events()
    with pytest.raises(kind) as caught:
        run(env, cluster, events)
    assert events.all == [], "a JobManager was started"
    return str(caught.value)


def test_too_few_slots_are_refused(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(preflight, "SLOTS_SECONDS", 0.2)
    text = refusal(a_job(tmp_path, 5), SparkCluster(spark), GraphError)
    assert "needs 5 slots" in text and re.search(r"local-cluster\[2,1,1024\] has 2", text)
    text = refusal(replaced(a_job(tmp_path), 2), SparkCluster(spark, slots=1), GraphError)
    assert "needs 2 slots" in text and "may take 1" in text
    with pytest.raises(GraphError, match="at least 1 slot"):
        SparkCluster(spark, slots=0)


def replaced(env: StreamExecutionEnvironment, parallelism: int) -> StreamExecutionEnvironment:
    """The same, with operators that have their own parallelism, which `slots` does not change."""
    for operator in env._graph.operators:
        operator.parallelism = parallelism
    return env


@pytest.mark.parametrize("key", ["spark.dynamicAllocation.enabled", "spark.speculation"])
def test_settings_that_would_break_a_job_are_refused(spark: SparkSession, key: str):
    conf = spark.sparkContext._conf
    conf.set(key, "true")
    try:
        with pytest.raises(GraphError, match=f"{re.escape(key)} is on.*--conf {key}=false"):
            SparkCluster(spark)
    finally:
        conf.set(key, "false")


def test_a_folder_that_executors_cannot_reach_is_refused(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    # As on a machine of its own: what the driver has put into the folder is not there.
    monkeypatch.setattr(Path, "write_text", lambda *_: 0)
    env = a_job(tmp_path)
    env.get_checkpoint_config().set_checkpoint_storage_dir(tmp_path / "job")
    text = refusal(env, SparkCluster(spark), StoreError)
    assert "cannot use the folder of the job (--checkpoint-dir) as the driver does" in text
    assert "(No such file or directory)" in text
    assert "all machines share" in text and str(tmp_path / "job") in text

    def told(_: Any, slots: int, marked: dict[str, str]) -> list[dict[str, Any]]:
        problems = dict.fromkeys(marked, "No such file or directory")
        about = {"host": "there", "python": "python", "version": preflight.VERSION}
        return [{**about, "missing": [], "problems": problems}] * slots

    # They would say the same of other folders, and asking them takes seconds.
    monkeypatch.setattr(preflight, "_ask", told)
    # Without one, the job's folder is a temporary one.
    env = a_job(tmp_path)
    env.enable_checkpointing(100)
    text = refusal(env, SparkCluster(spark), StoreError)
    assert "the job, which has no --checkpoint-dir," in text
    # What a sink stages is published by the driver.
    text = refusal(a_job(tmp_path), SparkCluster(spark), StoreError)
    assert "the folder of 'Sink: FileSink'" in text and str(tmp_path / "out") in text
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(1)
    table = SparkTableSink.at_path(tmp_path / "table", pa.schema([("a", pa.int64())]))
    env.from_sequence(1, 10).sink_to(table)
    text = refusal(env, SparkCluster(spark), StoreError)
    assert "the folder of 'Sink: SparkTableSink'" in text and str(tmp_path / "table") in text


def test_executors_with_a_folder_of_their_own_by_that_name_are_refused(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    answers = preflight._ask

    def elsewhere(*arguments: Any) -> Any:
        found = answers(*arguments)
        for path in tmp_path.glob("out/.reach-*.1"):
            path.unlink()
        return found

    monkeypatch.setattr(preflight, "_ask", elsewhere)
    text = refusal(a_job(tmp_path), SparkCluster(spark), StoreError)
    assert "of 2 files that they wrote there, 1 are here" in text
    assert list(tmp_path.glob("out/.reach-*")) == []


def test_executors_that_lack_a_package_are_refused_and_penstock_itself_is_sent(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(preflight, "PACKAGES", ("trio", "no_such_package"))
    text = refusal(a_job(tmp_path), SparkCluster(spark), GraphError)
    assert "lacks no_such_package" in text and "pip" not in text and "PYSPARK_PYTHON" in text
    monkeypatch.undo()
    sent = []
    monkeypatch.setattr(preflight, "_send_package", sent.append)
    monkeypatch.setattr(preflight, "VERSION", "0.0.0")
    text = refusal(a_job(tmp_path), SparkCluster(spark), GraphError)
    assert sent == [spark] and "instead of 0.0.0" in text


def test_executors_of_a_session_that_was_made_again_are_asked_again(
    monkeypatch: pytest.MonkeyPatch,
):
    # The package that was sent to them is gone with the session that sent it.
    session, checked, started = ["first"], [], []

    async def slots(spark: Any, needed: int) -> None:
        pass

    def submit(started_stage: Any, spark: Any, plan: Any, name: str) -> None:
        started.append((spark, list(checked)))
        assert started_stage.register(barrier_stage._Registration(0, 1, "localhost"))

    async def offload(function: Any) -> Any:
        return function()

    monkeypatch.setattr(barrier_stage, "await_slots", slots)
    monkeypatch.setattr(barrier_stage._BarrierStage, "submit", submit)
    live: Any = SimpleNamespace(get=lambda: session[-1])
    first, second = session[0], "second"
    launcher = BarrierStageLauncher(
        live, first, checked.append, 1, "job", SocketTransport(), offload
    )

    async def attempts() -> None:
        for number in range(4):
            if number == 2:
                session.append(second)
            await launcher.launch(WorkerSpec("", b"", 0, number, 1.0))

    trio.run(attempts)
    assert started == [(first, []), (first, []), (second, [second]), (second, [second])]


def test_the_package_is_whole_when_it_is_sent(tmp_path: Path):
    import subprocess

    path = preflight.zip_package(tmp_path)
    program = (
        f"import sys; sys.path.insert(0, {str(path)!r});"
        "import penstock.runtime.spark.stage_worker as m;"
        "import penstock.runtime.taskmanager.taskmanager; print(m.__file__)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path, check=True
    )
    assert done.stdout.startswith(str(path))


def test_a_program_that_the_command_line_runs_does_not_choose_a_cluster(spark: SparkSession):
    options = replace(current_options(), executor=SparkCluster(spark))
    with run_options(options), pytest.raises(GraphError, match="--master"):
        SparkCluster(spark).__enter__()


def test_an_attempt_that_spark_runs_again_does_nothing():
    # The rule is in the tasks themselves; Spark does not retry result stages.
    from penstock.runtime.spark.stage_worker import StagePlan, _work
    from penstock.runtime.system.launcher import WorkerSpec

    spec = WorkerSpec("tcp:127.0.0.1:9", b"token", 0, 1, 1.0)
    plan = StagePlan("tcp:127.0.0.1:9", b"token", (spec,))
    threads = set(threading.enumerate())
    assert _work(plan, 0, "127.0.0.1") == "not started: the driver does not wait for it"
    # One of another test may end meanwhile.
    assert set(threading.enumerate()) <= threads
