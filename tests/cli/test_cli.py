"""The commands that need no service, and what every command says of mistakes."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import penstock
import penstock.__main__
from penstock.cli import main
from penstock.cli.options import JobOptions
from tests.processes.harness import PATIENCE, wait_until

DOCS = Path(__file__).parents[2] / "docs" / "reference" / "cli.md"

NUMBERS = """
import sys
from pathlib import Path
from penstock import FileSink, JsonLines, StreamExecutionEnvironment

count, rate = int(sys.argv[1]), float(sys.argv[2])
if Path("hurry").exists():
    rate = 1e6
env = StreamExecutionEnvironment.get_execution_environment()
env.enable_checkpointing(50)
env.get_checkpoint_config().set_inline_threshold(0)
sums = env.from_generator(lambda i: i, count, rate).key_by(lambda i: i % 3).reduce(lambda a, b: b)
sums.sink_to(FileSink("out", JsonLines()))
env.execute("numbers")
"""

LOSING = """
from pathlib import Path
from penstock import FileSink, StreamExecutionEnvironment

def lose(number):
    if any(Path("out").glob("part-*")) and Path("snapshots").exists():
        Path("snapshots").rename("lost")
    return number

env = StreamExecutionEnvironment.get_execution_environment()
env.enable_checkpointing(50)
env.from_generator(lambda i: i, None, 200.0).map(lose).map(str).sink_to(FileSink("out"))
env.execute()
"""

BACKGROUND = """
import sys
from penstock import StreamExecutionEnvironment

env = StreamExecutionEnvironment.get_execution_environment()
env.from_collection([4, 0]).map(lambda i: 8 // i).print()
job = env.execute_async()
if sys.argv[1:] == ["exit"]:
    sys.exit(0)
if len(sys.argv) > 1:
    print(type(job.get_job_execution_result().exception()).__name__)
"""

COLLECT = """
from penstock import StreamExecutionEnvironment

env = StreamExecutionEnvironment.get_execution_environment()
for record in env.from_collection([1, 2, 3]).map(lambda i: i * 10).execute_and_collect():
    print(record)
"""

FAILING = """
from penstock import StreamExecutionEnvironment

env = StreamExecutionEnvironment.get_execution_environment()
env.from_collection([4, 0]).map(lambda i: 8 // i).print()
env.execute()
"""


def command(*args):
    return [sys.executable, "-m", "penstock", *map(str, args)]


def call(folder, *args, code=0):
    """Run a command to its end, and return its output, decoded."""
    done = subprocess.run(
        command(*args), cwd=folder, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done


def committed(folder):
    """The numbers in the committed output, in order."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    shown = [p for p in files if not any(q.startswith(("_", ".")) for q in p.parts)]
    return sorted(int(line) for path in shown for line in path.read_text().splitlines())


@pytest.fixture
def job(tmp_path):
    """Write a job file."""

    def write(text, name="job.py"):
        (tmp_path / name).write_text(text)
        return name

    return write


def test_a_job_gets_its_arguments_and_finds_its_neighbours_and_stdout_is_its_own(tmp_path, job):
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "neighbour.py").write_text("def double(i):\n    return 2 * i\n")
    job(
        "import sys\nfrom neighbour import double\n"
        "from penstock import StreamExecutionEnvironment\n"
        "env = StreamExecutionEnvironment.get_execution_environment()\n"
        "env.from_collection([int(word) for word in sys.argv[2:]]).map(double).print()\n"
        "result = env.execute(sys.argv[1])\n"
        "print(__name__, result.job_name)\n",
        "jobs/job.py",
    )
    done = call(
        tmp_path, "run", "jobs/job.py", "--report", "report.json", "--", "--title", "3", "4"
    )
    assert sorted(done.stdout.split()) == ["--title", "6", "8", "__main__"]
    assert "started: JobManager pid" in done.stderr
    assert "finished after" in done.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    assert (report["job"], report["status"]) == ("--title", "finished")
    assert report["operators"][0]["records_out"] == 2


@pytest.mark.parametrize(
    ("number", "code", "to"),
    [
        (signal.SIGINT, 130, "program"),
        (signal.SIGTERM, 143, "program"),
        (signal.SIGTERM, 143, "JobManager"),
    ],
)
def test_a_signal_stops_a_job_whose_resume_command_is_printed_and_nothing_is_lost(
    tmp_path, job, number, code, to
):
    args = ["run", job(NUMBERS), "--checkpoint-dir", "snapshots", "--progress", "plain"]
    running = subprocess.Popen(
        command(*args, "--", "400", "4"), cwd=tmp_path, stderr=subprocess.PIPE, text=True
    )
    wait_until(
        lambda: (tmp_path / "out").exists() and committed(tmp_path / "out"), "committed output"
    )
    if to == "program":
        running.send_signal(number)
    else:
        assert running.stderr is not None
        os.kill(int(re.findall(r"JobManager pid (\d+)", running.stderr.readline())[0]), number)
    _, said = running.communicate(timeout=PATIENCE)
    assert running.returncode == code
    assert ("the JobManager received SIGTERM: stopping the job" in said) == (to == "JobManager")
    (resume,) = re.findall("stopped; resume with: penstock (.*)", said)
    assert resume == "run job.py --checkpoint-dir snapshots --resume -- 400 4"
    assert len(committed(tmp_path / "out")) < 400
    (tmp_path / "hurry").touch()
    done = call(tmp_path, *resume.split())
    assert "resumed from snapshot" in done.stderr
    assert committed(tmp_path / "out") == list(range(400))


def test_a_job_whose_checkpoint_folder_is_lost_is_not_said_to_be_resumable(tmp_path, job):
    done = call(tmp_path, "run", job(LOSING), "--checkpoint-dir", "snapshots", code=1)
    last = done.stderr.splitlines()[-1]
    gone = tmp_path / "snapshots"
    assert last == f"there is nothing to resume from: the checkpoint folder {gone} is gone"
    assert "the checkpoint folder was removed or moved while the job ran" in done.stderr


def test_a_job_of_execute_async_that_fails_is_told(tmp_path, job):
    ignored = call(tmp_path, "run", job(BACKGROUND), "--progress", "none", code=1)
    assert "Error: ZeroDivisionError in operator 'Map'" in ignored.stderr
    left = call(tmp_path, "run", job(BACKGROUND), "--progress", "none", "--", "exit", code=1)
    assert "Error: ZeroDivisionError in operator 'Map'" in left.stderr
    handled = call(tmp_path, "run", job(BACKGROUND), "--progress", "none", "--", "ask")
    assert handled.stdout.split() == ["2", "JobError"] and "Error: " not in handled.stderr


def test_output_that_cannot_be_written_is_told_in_one_line():
    golden = Path(__file__).parents[1] / "golden" / "format-4"
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            command("snapshots", "list", golden),
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert (done.returncode, done.stderr) == (1, "Error: No space left on device\n")


def test_every_kind_of_state_in_a_snapshot_is_shown(tmp_path):
    states = Path(__file__).parents[1] / "golden" / "states"

    def run(*args, code=0):
        result = CliRunner().invoke(main, ["snapshots", *map(str, args)])
        assert result.exit_code == code, result.output
        return result.output

    shown = run("show", states / "inline")
    for text in (
        "list (list, 3 entries)",
        "map (map, 3 entries)",
        "mean (aggregating, 1 entry)",
        "recent (map, expires, 1 entry)",
        "timers (timer, 1 entry)",
        "value (value, 2 entries)",
    ):
        assert text in shown
    assert "map (map)," in run("show", states / "rows")
    for form in ("inline", "blocks", "rows"):
        lines = run("state", states / form, "--key", '"b"', "--state", "map").splitlines()
        assert lines[0].split() == ["operator", "state", "kind", "key", "part", "value"]
        assert len(lines) == 3 and all('"b"' in line for line in lines[1:])
        assert len(run("state", states / form, "--limit", 3).splitlines()) == 5
        assert "more than 3 entries" in run("state", states / form, "--limit", 3)
    assert "is no JSON" in run("state", states / "rows", "--key", "b", code=1)
    assert "holds no state 'no'" in run("state", states / "rows", "--state", "no", code=1)


def test_a_second_run_on_a_folder_with_snapshots_needs_resume(tmp_path, job):
    args = ["run", job(NUMBERS), "--checkpoint-dir", "snapshots"]
    rest = ["--", "20", "1000"]
    first = call(tmp_path, *args, "--resume", *rest)
    assert "no snapshot to resume from: starting from the beginning" in first.stderr
    assert "go on from the newest with --resume" in call(tmp_path, *args, *rest, code=1).stderr
    again = call(tmp_path, *args, "--resume", *rest)
    assert "the job had already read all of its input" in again.stderr
    other = call(tmp_path, *args, "--resume", "--name", "other", *rest, code=1)
    assert "numbers" in other.stderr and "other" in other.stderr


def test_records_are_collected_while_lines_go_to_standard_error(tmp_path, job):
    done = call(tmp_path, "run", job(COLLECT))
    assert done.stdout.split() == ["10", "20", "30"]
    assert "finished" in done.stderr


def test_a_failing_function_is_reported_with_its_own_traceback_first(tmp_path, job):
    done = call(tmp_path, "run", job(FAILING), "--progress", "none", code=1)
    lines = done.stderr.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert "8 // i" in done.stderr
    assert lines[-2:] == ["  operator: Map", "  record:   0"]
    assert "/penstock/" not in done.stderr


@pytest.mark.parametrize("text", [NUMBERS, COLLECT])
def test_a_graph_is_drawn_and_nothing_is_executed(tmp_path, job, text):
    name = job(text + "\nprint('not reached')\n")
    drawn = call(tmp_path, "graph", name, "-p", "2", "--", "5", "5").stdout
    assert "workers: 2" in drawn
    assert "not reached" not in drawn
    mermaid = call(tmp_path, "graph", name, "--format", "mermaid", "--", "5", "5").stdout
    assert mermaid.startswith("flowchart LR")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["job.py"]


def test_snapshots_are_listed_shown_and_checked(tmp_path, job):
    call(tmp_path, "run", job(NUMBERS), "--checkpoint-dir", "ck", "--", "100", "1000")
    runner = CliRunner()
    folder = tmp_path / "ck"

    def run(*args, code=0):
        result = runner.invoke(main, ["snapshots", *map(str, args)])
        assert result.exit_code == code, result.output
        return result.output

    rows = json.loads(run("list", folder, "--json", "--verify"))["snapshots"]
    assert [row["complete"] for row in rows] == [True] * len(rows)
    newest = rows[-1]
    assert newest["kind"] == "final"
    assert "final" in run("list", folder)
    assert newest["lineage"] in run("show", folder)
    path = folder / "checkpoints" / f"{newest['number']:06d}"
    details = json.loads(run("show", path, "--json"))
    assert details["number"] == newest["number"]
    assert details["finished"] is True
    assert [row["kind"] for row in details["operators"]] == ["source", "keyed_reduce", "sink"]
    assert details["operators"][1]["files"] > 0

    assert details["operators"][1]["kinds"] == {"value": "value"}
    lines = [json.loads(line) for line in run("state", folder, "--json").splitlines()]
    assert all(line["kind"] == "value" for line in lines)
    one = lines[0]
    shown = run("state", folder, "--key", json.dumps(one["key"]), "--state", "value", "--json")
    assert json.loads(shown) == one

    victim = next(found for found in path.rglob("*.sst"))
    content = bytearray(victim.read_bytes())
    content[len(content) // 2] ^= 255
    victim.write_bytes(content)
    run("show", folder)
    assert str(victim) in run("show", folder, "--verify", code=1)
    assert str(victim) in run("list", folder, "--verify", code=1)
    victim.unlink()
    assert "is missing" in run("show", folder, code=1)

    manifest = path / "manifest"
    manifest.write_bytes(manifest.read_bytes()[:-5])
    assert str(manifest) in run("list", folder, code=1)
    assert str(manifest) in run("show", folder, code=1)
    assert "there is no complete snapshot 99999" in run("show", folder, "99999", code=1)


# ---- what a newcomer would do wrong


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (["run", "nope.py"], 1, "there is no job file nope.py"),
        (["run", "."], 1, ". is a folder; name the job's Python file"),
        (["run"], 2, "Missing the job file, JOB.py."),
        (["run", "--resume", "job.py"], 2, "penstock run job.py --resume"),
        (["run", "job.py", "--input", "x"], 2, "go after --, as in: -- --input"),
        (["run", "--", "--input"], 2, "The job file comes before --"),
        (["run", "job.py", "--fork"], 2, "--fork goes together with --resume"),
        (["run", "job.py", "--resume", "--fork"], 2, "--fork goes with the number"),
        (["run", "job.py", "--allow-dropped"], 2, "--allow-dropped goes together with --resume"),
        (["run", "job.py", "--sink-marker", "a=1"], 2, "--sink-marker goes together with --resume"),
        (["run", "job.py", "--resume", "--sink-marker", "a=b"], 2, "'a=b' is not UID=NUMBER"),
        (["run", "job.py", "--resume"], 1, "nothing to resume from: give a folder"),
        (["run", "job.py", "--checkpoint-interval", "5 minutes"], 2, "is not a time"),
        (["run", "job.py", "--checkpoint-interval", "0"], 2, "is too short; at least 1ms"),
        (["run", "job.py", "--checkpoint-dir", ""], 2, "--checkpoint-dir is empty"),
        (["run", "job.py", "--checkpoint-dir", "ftp://b/c"], 2, "'ftp://b/c' is no place for"),
        (["run", "job.py", "--checkpoint-dir", "s3://"], 2, "'s3://' names no bucket"),
        (["run", "job.py", "--resume", "s3://b/c", "--checkpoint-dir", "d"], 2, "or add --fork"),
        (["run", "job.py", "--parallelism", "0"], 2, "0 is not in the range"),
        (["run", "job.py", "--parallelism", "1000"], 1, "above the max parallelism 128"),
        (["run", "job.py", "--report", "no/r.json"], 2, "there is no folder no"),
        (["run", "job.py", "--report", "."], 2, "is a folder; give a file"),
        (["graph", "job.py", "--format", "svg"], 2, "'svg' is not one of"),
        (["snapshots", "list", "nowhere"], 1, "there is no such folder"),
        (["snapshots", "list", "."], 1, "this is not a job's checkpoint folder"),
        (["snapshots", "show", "."], 1, "this is not a job's checkpoint folder"),
        (["list", "--dir", "nowhere"], 1, "start one with: penstock jobmanager --dir nowhere"),
        (["cancel", "1", "--dir", "nowhere"], 1, "no job manager runs"),
        (["submit", "job.py", "--dir", "nowhere"], 1, "no job manager runs"),
        (["submit", "job.py", "--detach", "--report", "r"], 2, "not with --detach"),
        (["jobmanager", "--host", "0.0.0.0"], 2, "--host goes together with --port"),
    ],
)
def test_a_mistake_on_the_command_line_is_reported_in_a_sentence(
    tmp_path, job, monkeypatch, args, code, said
):
    job("from penstock import StreamExecutionEnvironment\n"
        "env = StreamExecutionEnvironment.get_execution_environment()\n"
        "env.from_collection([1]).print()\n"
        "env.execute()\n")  # fmt: skip
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(main, args)
    assert said in result.output
    assert result.exit_code == code
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = 1\n", "has run, but executed nothing: it must call env.execute()"),
        ("import sys\ndef main():\n    pass\nsys.exit(main())\n", "executed nothing"),
        ("import sys\nsys.exit('no input given')\n", "no input given"),
        ("def f(:\n", "SyntaxError"),
        ("import no_such_module\n", "ModuleNotFoundError: No module named 'no_such_module'"),
        (
            "from penstock import StreamExecutionEnvironment as E\n"
            "E.get_execution_environment().from_collection(5)\n",
            "TypeError: 'int' object is not iterable",
        ),
        (
            "from penstock import StreamExecutionEnvironment as E\n"
            "E.get_execution_environment().from_collection([5]).map(5)\n",
            "job.py, line 2",
        ),
    ],
)
def test_an_error_of_a_job_file_is_reported_without_internal_frames(
    tmp_path, job, monkeypatch, text, said
):
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(main, ["run", job(text)])
    assert said in result.output
    assert result.exit_code == 1
    assert "runpy" not in result.output
    assert str(Path(penstock.__file__).parent) not in result.output


def test_a_job_file_may_exit_as_it_likes(tmp_path, job, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = list(sys.path), list(sys.argv)
    assert CliRunner().invoke(main, ["run", job("raise SystemExit(7)")]).exit_code == 7
    helped = CliRunner().invoke(main, ["run", job("print('usage')\nraise SystemExit(0)")])
    assert helped.exit_code == 0
    assert "before it executed anything" in helped.output
    assert (sys.path, sys.argv) == before


@pytest.mark.parametrize(
    ("text", "seconds"), [("200ms", 0.2), ("1s", 1), ("2.5s", 2.5), ("1m", 60), ("0.5", 0.5)]
)
def test_times_are_read_with_their_units(tmp_path, monkeypatch, text, seconds):
    seen = []
    monkeypatch.setattr(
        "penstock.cli.script.run_job", lambda options, *_: seen.append(options) or 0
    )
    CliRunner().invoke(main, ["run", "job.py", "--checkpoint-interval", text])
    assert seen[0].checkpoint_interval == pytest.approx(seconds)


def test_resume_takes_nothing_a_number_or_a_path(monkeypatch):
    seen = []
    monkeypatch.setattr(
        "penstock.cli.script.run_job", lambda options, *_: seen.append(options) or 0
    )
    for args in (["--resume", "--", "a"], ["--resume", "7"], ["--resume", "old/ck"], []):
        CliRunner().invoke(main, ["run", "job.py", *args])
    assert [options.resume for options in seen] == ["newest", 7, "old/ck", None]
    assert seen[0].args == ("a",)


def test_the_command_to_resume_with_can_be_pasted():
    options = JobOptions(
        "submit", "my job.py", ("--x",), checkpoint_interval=0.2, extra=("--dir", "d"), resume=3
    )
    expected = "penstock submit 'my job.py' --checkpoint-interval 0.2s --dir d --resume -- --x"
    assert options.resume_command() == expected
    options = JobOptions("run", "job.py", py_files="a,b", py_requirements="r#w")
    expected = "penstock run job.py --py-files a,b --py-requirements 'r#w' --resume"
    assert options.resume_command() == expected


def test_a_ctrl_c_outside_of_the_job_file_is_no_error_of_the_command(monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    handlers = []
    monkeypatch.setattr("penstock.cli.signal.signal", lambda *given: handlers.append(given))
    monkeypatch.setattr("penstock.cli.script.run_job", interrupted)
    done = CliRunner().invoke(main, ["run", "job.py"])
    assert (done.exit_code, done.stderr) == (130, "stopped\n")
    assert handlers == [(signal.SIGINT, signal.SIG_IGN), (signal.SIGTERM, signal.SIG_IGN)]


def test_a_ctrl_c_while_the_command_line_is_imported_leaves_no_traceback(monkeypatch, capsys):
    def interrupted(**_):
        raise KeyboardInterrupt

    monkeypatch.setattr("penstock.cli.main", interrupted)
    with pytest.raises(SystemExit) as ended:
        penstock.__main__.main()
    assert (ended.value.code, capsys.readouterr().err) == (130, "stopped\n")


# ---- help and documentation


def commands(group=main, words=("penstock",)):
    for name, each in group.commands.items():
        if isinstance(each, click.Group):
            yield from commands(each, (*words, name))
        else:
            yield " ".join((*words, name)), each


def test_every_command_and_option_has_help_and_is_documented():
    sections = dict(re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", DOCS.read_text(), re.M | re.S))
    assert set(sections) == {name for name, _ in commands()}
    for name, each in commands():
        assert each.help, name
        for option in each.params:
            if isinstance(option, click.Option):
                assert option.help, f"{name} {option.name}"
                for spelling in (*option.opts, *option.secondary_opts):
                    assert f"`{spelling}" in sections[name], f"{name} {spelling}"


#: Commands whose output is no data: that of a job, of a service, a file, a page or a script.
NO_DATA = {
    *("penstock run", "penstock simulate", "penstock jobmanager", "penstock snapshots export"),
    *("penstock docs", "penstock completion"),
}


def test_every_help_has_an_example_that_names_the_command():
    for name, _ in commands():
        text = CliRunner().invoke(main, [*name.split()[1:], "--help"]).output
        parts = re.split(r"^ *(Examples?:)$", text, maxsplit=1, flags=re.M)
        assert len(parts) == 3, name
        _, heading, examples = parts
        lines = examples.split("\n\n")[0].strip().splitlines()
        assert (heading == "Examples:") == (len(lines) > 1), name
        for line in lines:
            assert re.search(rf"\b{name}\b", line), f"{name}: {line}"


def test_every_command_that_prints_data_prints_it_as_json():
    with_json = {
        name for name, each in commands() if any("--json" in one.opts for one in each.params)
    }
    assert with_json == {name for name, _ in commands()} - NO_DATA


def test_the_exit_codes_of_the_page_are_those_of_the_commands(tmp_path, job):
    text = DOCS.read_text().partition("## penstock run")[0]
    rows = re.findall(r"^\| (\d+) \|", text, re.M)
    assert rows == ["0", "1", "2", "130", "143"]
    home = ["--dir", str(tmp_path / "home")]
    call(tmp_path, "run", job(COLLECT), "--progress", "none", code=0)
    call(tmp_path, "run", job(FAILING), "--progress", "none", code=1)
    call(tmp_path, "run", job("import sys\nsys.exit(7)\n"), code=7)
    call(tmp_path, "show", "1", *home, code=1)
    call(tmp_path, "show", *home, code=2)
    call(tmp_path, "show", "1", "--unknown", code=2)
    call(tmp_path, "nothing", code=2)


def test_a_graph_is_printed_as_json(tmp_path, job):
    graph = json.loads(call(tmp_path, "graph", job(NUMBERS), "--json", "--", "1", "1").stdout)
    assert graph["vertices"][0]["source"] and graph["edges"][0]["partitioning"] == "hash"


def test_the_version_is_printed_and_help_is_quick():
    assert penstock.__version__ in CliRunner().invoke(main, ["--version"]).output
    code = "import sys; from penstock.cli import main; print([m for m in ('trio', 'rich', 'rocksdict', 'networkx') if m in sys.modules])"  # noqa: E501
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(penstock.__file__).parents[1],
        env=dict(os.environ),
    )
    assert done.stdout.strip() == "[]"
