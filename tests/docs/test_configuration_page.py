"""The page on configuration lists every setting with its default, and what it says works."""

import os
import re
import subprocess
import sys
import tomllib
from dataclasses import fields
from enum import Enum
from pathlib import Path

import pytest

from penstock import GraphError, JobConfig, RestartStrategies, StreamExecutionEnvironment
from penstock.dataflow.config.outer_settings import FILE_NAME, config_of_files
from penstock.dataflow.config.setting_texts import setting_names, setting_value
from tests.processes.harness import PATIENCE

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "reference" / "configuration.md").read_text(encoding="utf-8")
SETTINGS = PAGE[PAGE.index("## All settings") : PAGE.index("## Variables")]
ROWS = dict(re.findall(r"^\| `(\w+)` \| ([^|]*?) \|", SETTINGS, re.MULTILINE))
STRATEGIES = re.findall(r"^\| `([^`]+)` \| `(\w+_restart\(.*?\))` \|", PAGE, re.MULTILINE)
(PROGRAM,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
ERROR, OUTPUT = re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL)
(FILE,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)


def _default(name: str) -> str:
    value = getattr(JobConfig(), setting_names()[name])
    if value is None or value == {}:
        return "none"
    if setting_names()[name].endswith("_seconds"):
        return f"`{value:g} s`"
    if isinstance(value, Enum):
        return f"`{value.value}`"
    return f'`"{value}"`' if isinstance(value, str) else f"`{str(value).lower()}`"


def test_the_page_lists_every_setting_with_its_default():
    assert len(setting_names()) == len(fields(JobConfig))
    assert {name: _default(name) for name in setting_names()} == ROWS


def test_the_methods_that_it_names_exist():
    env = StreamExecutionEnvironment(JobConfig())
    places = {"env.": env, "": env.get_checkpoint_config()}
    for where, name in re.findall(
        r"\| `(env\.)?(set_\w+|enable_\w+|get_\w+)(?:\(\))?` \|$", SETTINGS
    ):
        assert hasattr(places[where], name), name


def test_its_file_can_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path / "user"))
    (tmp_path / FILE_NAME).write_text(FILE)
    config = config_of_files()
    assert (config.parallelism, config.checkpoint_interval_seconds) == (2, 10)
    assert config.restart == RestartStrategies.fixed_delay_restart(3, 1000)
    assert config.job_parameters == {"threshold": "100"}
    assert config.memory_bytes == 2**30
    assert set(tomllib.loads(FILE)) <= set(setting_names())
    (tmp_path / FILE_NAME).write_text("paralelism = 2")
    with pytest.raises(GraphError) as error:
        config_of_files()
    assert str(error.value) == ERROR.strip()


@pytest.mark.parametrize(("text", "call"), STRATEGIES)
def test_the_texts_of_restart_strategies_mean_what_it_says(text: str, call: str):
    expected = eval(f"RestartStrategies.{call}", {"RestartStrategies": RestartStrategies})
    assert setting_value("restart", text) == expected


def test_it_lists_all_restart_strategies():
    made = {name for name in vars(RestartStrategies) if name.endswith("_restart")}
    assert {call.split("(")[0] for _, call in STRATEGIES} == made - {"fall_back_restart"}


def test_its_program_reads_parameters(tmp_path: Path):
    (tmp_path / "job.py").write_text(PROGRAM)
    run = [sys.executable, "-m", "penstock", "run", "job.py", "--in-process"]

    def output(*arguments: str) -> str:
        done = subprocess.run(
            [*run, *arguments],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert output() == OUTPUT
    assert output("--param", "threshold=4") == "4\n"
