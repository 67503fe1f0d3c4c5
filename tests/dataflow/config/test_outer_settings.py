"""Settings from `penstock.toml` and from the environment, and the parameters of a job."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from penstock import (
    CheckpointingMode,
    Configuration,
    ExternalizedCheckpointRetention,
    GraphError,
    JobConfig,
    MapFunction,
    RestartStrategies,
    RuntimeContext,
    RuntimeExecutionMode,
    StreamExecutionEnvironment,
)
from penstock.dataflow.config.claim_mode import RecoveryClaimMode
from penstock.dataflow.config.cold_store import ColdStoreKind
from penstock.dataflow.config.lost_position import LostPosition
from penstock.dataflow.config.outer_settings import environment_variables, with_environment
from penstock.dataflow.config.restart_scope import RestartScope
from penstock.dataflow.config.setting_texts import setting_names, setting_value
from penstock.dataflow.config.start_method import StartMethod
from penstock.runtime.codegen.switch import is_enabled
from tests.processes.harness import PATIENCE

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, beside an empty folder of the user."""
    (tmp_path / "user").mkdir()
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path / "user"))
    for variable in environment_variables():
        monkeypatch.delenv(variable, raising=False)
    return tmp_path / "project"


def config() -> JobConfig:
    return StreamExecutionEnvironment.get_execution_environment().config


def test_without_files_all_settings_have_their_defaults(folder: Path):
    assert config() == JobConfig()


def test_the_file_of_the_project_overrides_that_of_the_user(folder: Path):
    user = folder.parent / "user" / "penstock.toml"
    user.write_text('parallelism = 3\nretained = 7\n[job_parameters]\nlimit = 1\nmode = "a"')
    (folder / "penstock.toml").write_text("parallelism = 2\n[job_parameters]\nlimit = 2")
    made = config()
    assert (made.parallelism, made.retained) == (2, 7)
    assert made.job_parameters == {"limit": "2", "mode": "a"}


def test_the_program_overrides_the_files_and_the_environment_the_program(
    folder: Path, monkeypatch: pytest.MonkeyPatch
):
    (folder / "penstock.toml").write_text('parallelism = 2\nmin-pause = "2 s"')
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(4)
    assert with_environment(env.config).parallelism == 4
    monkeypatch.setenv("PENSTOCK_PARALLELISM", "8")
    monkeypatch.setenv("PENSTOCK_CHECKPOINT_INTERVAL", "500 ms")
    made = with_environment(env.config)
    assert (made.parallelism, made.checkpoint_interval_seconds, made.min_pause_seconds) == (
        8,
        0.5,
        2,
    )
    assert env.config.parallelism == 4


def test_settings_of_the_program_do_not_read_the_files(folder: Path):
    (folder / "penstock.toml").write_text("parallelism = 2")
    assert StreamExecutionEnvironment(JobConfig()).config.parallelism == 1


SAMPLES = {
    "checkpointing_mode": ("unaligned", CheckpointingMode.UNALIGNED),
    "in_process": (True, True),
    "codegen": ("off", False),
    "cold_store": ("sqlite", ColdStoreKind.SQLITE),
    "restart_scope": ("region", RestartScope.REGION),
    "restart_reactive": (True, True),
    "start_method": ("spawn", StartMethod.SPAWN),
    "on_lost_position": ("earliest", LostPosition.EARLIEST),
    "claim_mode": ("claim", RecoveryClaimMode.CLAIM),
    "chaining": (False, False),
    "log_level": ("INFO", 20),
    "restart": (
        "fixed-delay, attempts=3, delay=1 s",
        RestartStrategies.fixed_delay_restart(3, 1000),
    ),
    "memory_bytes": ("1 gb", 2**30),
    "runtime_mode": ("batch", RuntimeExecutionMode.BATCH),
    "inline_threshold": (100, 100),
    "batch_bytes": ("64 kb", 2**16),
    "name": ("a", "a"),
    "host": ("0.0.0.0", "0.0.0.0"),
    "checkpoint_dir": ("job", "job"),
    "snapshot_store": ("s3://bucket/job", "s3://bucket/job"),
    "retention": (
        "delete-on-cancellation",
        ExternalizedCheckpointRetention.DELETE_ON_CANCELLATION,
    ),
    "python_files": ("a.py,b", "a.py,b"),
    "python_archives": ("a.zip#a", "a.zip#a"),
    "python_requirements": ("all.txt", "all.txt"),
    "install_requirements": (True, True),
    "python_executable": ("python3", "python3"),
}


@pytest.mark.parametrize("attribute", [f.name for f in fields(JobConfig)])
def test_every_setting_can_be_in_a_file(folder: Path, attribute: str):
    if attribute == "job_parameters":
        return  # a table, in the tests above
    default = 7 if attribute not in SAMPLES else None
    text, value = SAMPLES.get(attribute, (default, default))
    if attribute.endswith("_seconds"):
        text, value = "1500 ms", 1.5
    (name,) = [name for name, a in setting_names().items() if a == attribute]
    rendered = f'"{text}"' if isinstance(text, str) else str(text).lower()
    (folder / "penstock.toml").write_text(f"{name} = {rendered}")
    assert getattr(config(), attribute) == value


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("paralelism = 2", "penstock.toml has the key 'paralelism'.*did you mean 'parallelism'"),
        ("[job]\nparallelism = 2", "the key 'job', which is no setting"),
        ("parallelism = ", "penstock.toml cannot be read"),
        ("parallelism = true", "parallelism = True cannot be read: it is a whole number"),
        ("min_pause = 3", "min_pause = 3 cannot be read: it is a length of time with its unit"),
        ('min_pause = "3"', "with its unit"),
        ('memory_bytes = "much"', "it is a size such as 512 mb"),
        ('checkpointing_mode = "often"', "it is one of exactly_once, at_least_once"),
        ("in_process = 7", "it is true or false"),
        ('straggler_factor = "1,4"', "it is a number"),
        ("straggler_factor = true", "it is a number"),
        ('restart = "sometimes"', "it is one of none, fixed-delay"),
        ('restart = "fixed-delay"', "needs attempts= and delay="),
        ('restart = "fixed-delay, tries=3"', "'tries=3' is no option of fixed-delay"),
        ('log_level = "loud"', "a log level is DEBUG"),
        ('job_parameters = "a"', "is a table"),
    ],
)
def test_a_mistake_in_a_file_is_named(folder: Path, content: str, message: str):
    (folder / "penstock.toml").write_text(content)
    with pytest.raises(GraphError, match=message):
        config()


def test_a_mistake_in_the_environment_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch):
    with monkeypatch.context() as patch:
        patch.setenv("PENSTOCK_PARALELISM", "2")
        with pytest.raises(GraphError, match="did you mean PENSTOCK_PARALLELISM"):
            with_environment(JobConfig())
    for name, text in (("RETAINED", "few"), ("CODEGEN", "never"), ("LOG_LEVEL", "LOUD")):
        with monkeypatch.context() as patch:
            patch.setenv(f"PENSTOCK_{name}", text)
            with pytest.raises(GraphError, match=f"the variable PENSTOCK_{name} = '{text}'"):
                with_environment(JobConfig())


@pytest.mark.parametrize("text", ["off", "False", "0"])
def test_code_generation_is_switched_off_by_a_variable(text: str, monkeypatch: pytest.MonkeyPatch):
    assert is_enabled()
    monkeypatch.setenv("PENSTOCK_CODEGEN", text)
    assert not is_enabled()
    with_environment(JobConfig())


@pytest.mark.parametrize(
    ("text", "strategy"),
    [
        ("none", RestartStrategies.no_restart()),
        (
            "failure-rate, max-failures=3, interval=5 min, delay=1 s",
            RestartStrategies.failure_rate_restart(3, 300_000, 1000),
        ),
        ("exponential-delay", RestartStrategies.exponential_delay_restart()),
        (
            "exponential_delay, initial=1 s, max=10 s, multiplier=1.5, reset=1 min, attempts=9",
            RestartStrategies.exponential_delay_restart(1000, 10_000, 1.5, 60_000, 9),
        ),
    ],
)
def test_a_restart_strategy_is_a_text(text: str, strategy: object):
    assert setting_value("restart", text) == strategy


def test_a_factor_of_stragglers_is_a_number_above_1():
    assert setting_value("straggler_factor", "2.5") == setting_value("straggler_factor", 2.5) == 2.5
    JobConfig(straggler_factor=1.1).validate()
    for factor in (1.0, float("nan")):
        with pytest.raises(GraphError, match="straggler_factor must be greater than 1, not"):
            JobConfig(straggler_factor=factor).validate()


# ---- parameters of the job


class Limit(MapFunction[int, "tuple[int, str, str | None]"]):
    def open(self, runtime_context: RuntimeContext) -> None:
        self.limit = int(runtime_context.get_job_parameter("limit", "7"))
        self.mode = runtime_context.get_job_parameter("mode", "none")
        self.other = runtime_context.get_job_parameter("other")
        assert runtime_context.get_job_parameters().get("mode") in (None, "fast")

    def map(self, value: int) -> tuple[int, str, str | None]:
        return min(value, self.limit), self.mode, self.other


def test_functions_read_the_parameters_of_the_job(folder: Path):
    env = StreamExecutionEnvironment.get_execution_environment().set_in_process(True)
    made = env.get_config().set_global_job_parameters({"limit": 3, "mode": "fast"})
    assert made.get_global_job_parameters() == {"limit": "3", "mode": "fast"}
    assert list(env.from_collection([9]).map(Limit()).execute_and_collect()) == [(3, "fast", None)]
    env.get_config().set_global_job_parameters(Configuration({"limit": 5}))
    assert list(env.from_collection([9]).map(Limit()).execute_and_collect()) == [(5, "none", None)]
    with pytest.raises(GraphError, match="takes a mapping"):
        made.set_global_job_parameters(["a"])  # type: ignore[arg-type]


JOB = """
from penstock import MapFunction, StreamExecutionEnvironment

class Show(MapFunction):
    def open(self, context):
        self.shown = sorted(context.get_job_parameters().items())

    def map(self, value):
        return self.shown

env = StreamExecutionEnvironment.get_execution_environment()
env.get_config().set_global_job_parameters({"a": 1, "b": 2})
env.from_collection([0]).map(Show()).print()
env.execute()
"""


def test_the_command_line_sets_parameters_of_the_job(folder: Path):
    (folder / "job.py").write_text(JOB)
    arguments = ["job.py", "--in-process", "--param", "b=x=y", "--param", "c="]
    done = subprocess.run(
        [sys.executable, "-m", "penstock", "run", *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env={"PYTHONPATH": str(ROOT), "PENSTOCK_HOME": str(folder)},
    )
    assert done.stdout == "[('a', '1'), ('b', 'x=y'), ('c', '')]\n", done.stderr
    done = subprocess.run(
        [sys.executable, "-m", "penstock", "run", "job.py", "--param", "b"],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env={"PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 2 and "'b' is not NAME=VALUE" in done.stderr
