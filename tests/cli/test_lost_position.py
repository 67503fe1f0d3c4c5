"""`--on-lost-position`: the choice of the command line reaches the readers of all sources."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from penstock.cli import main
from penstock.dataflow.config.lost_position import LostPosition
from penstock.dataflow.source import ReaderContext

PROGRAM = """
from penstock import GeneratorSource, StreamExecutionEnvironment, WatermarkStrategy


class Choosing(GeneratorSource):
    def create_reader(self, context):
        for choice in ("fail", "earliest"):
            print(choice, "goes on:", context.goes_on_at_earliest(choice))
        return super().create_reader(context)


env = StreamExecutionEnvironment.get_execution_environment()
env.from_source(Choosing(lambda i: i, 1), WatermarkStrategy.no_watermarks(), "numbers").print()
env.execute()
"""


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([], ("fail goes on: False", "earliest goes on: True")),
        (["--on-lost-position", "earliest"], ("fail goes on: True", "earliest goes on: True")),
        (["--on-lost-position", "fail"], ("fail goes on: False", "earliest goes on: False")),
    ],
)
def test_the_command_line_overrides_what_sources_say(
    tmp_path: Path, options: list[str], said: tuple[str, ...]
):
    path = tmp_path / "job.py"
    path.write_text(PROGRAM)
    result = CliRunner().invoke(main, ["run", str(path), "--in-process", *options])
    assert result.exit_code == 0, result.output
    for line in said:
        assert line in result.output


def test_an_unknown_choice_is_refused(tmp_path: Path):
    result = CliRunner().invoke(main, ["run", "job.py", "--on-lost-position", "newest"])
    assert result.exit_code == 2
    assert "'newest' is not one of 'fail', 'earliest'" in result.output


def test_a_reader_without_a_setting_of_the_job_does_what_its_source_says():
    assert not ReaderContext("source", 0, 1).goes_on_at_earliest("fail")
    assert ReaderContext("source", 0, 1).goes_on_at_earliest("earliest")
    context = ReaderContext("source", 0, 1, on_lost_position=LostPosition.EARLIEST)
    assert context.goes_on_at_earliest("fail")
