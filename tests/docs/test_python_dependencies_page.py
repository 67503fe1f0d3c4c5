"""The page on Python files: its program prints what it says, and its methods and options exist."""

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from penstock import JobConfig, StreamExecutionEnvironment
from penstock.cli import main
from penstock.testing.fixtures import penstock_in_process  # noqa: F401

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "guides" / "python-dependencies.md").read_text(encoding="utf-8")
(PROGRAM,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def test_its_program_prints_what_it_says(
    penstock_in_process: None,  # noqa: F811
    capsys: pytest.CaptureFixture[str],
):
    exec(compile(PROGRAM, "page.py", "exec"), {"__name__": "page"})
    assert capsys.readouterr().out.strip() == PROGRAM.rstrip().rpartition("# ")[2]


def test_its_methods_options_and_settings_exist():
    rows = re.findall(r"^\| `(\w+)\(.*?\)` \| `(-\w+)`, `(--[\w-]+)` \| `(\w+)` \|", PAGE, re.M)
    assert len(rows) == 4
    help = CliRunner().invoke(main, ["run", "--help"]).output
    for method, short, long, setting in rows:
        assert callable(getattr(StreamExecutionEnvironment, method))
        assert f"{short}, {long}" in help
        assert hasattr(JobConfig(), setting)
