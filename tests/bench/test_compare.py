"""Two revisions compared: whose engine runs whose benchmark, and what the intervals say."""

import math
import subprocess

import pytest

from bench.compare import CompareError, compare, interval_95, numbers

ENGINE = "SPEED = {speed}\n"
#: It needs nothing of the engine but its speed.
BENCH = """\
import json, sys
import penstock
name, as_json, *rest = sys.argv[1:]
assert name == "toy" and as_json == "--json", sys.argv
print("progress goes before")
print(json.dumps({{
    "words_per_second": penstock.SPEED * {factor}, "cores": 2, "rate_per_second": 7,
    "nested": {{"p99_ms": 1000 / penstock.SPEED, "note": "fast"}}, "options": rest,
    "all_words_per_second": [penstock.SPEED],
}}))
"""


def quiet(_: object) -> None:
    """Progress is for people."""


def git(tree, *arguments):
    own = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    done = subprocess.run(
        ["git", "-C", tree, *own, *arguments], check=True, capture_output=True, text=True
    )
    return done.stdout


def write(tree, engine: str, bench: str) -> None:
    for folder, name, text in (("penstock", "__init__", engine), ("bench", "__main__", bench)):
        (tree / folder).mkdir(exist_ok=True)
        (tree / folder / f"{name}.py").write_text(text)
        (tree / folder / "__init__.py").touch()


@pytest.fixture
def tree(tmp_path):
    """A working tree whose engine is, uncommitted, twice as fast as the committed one."""
    tree = tmp_path / "tree"
    tree.mkdir()
    git(tree, "init", "--quiet")
    write(tree, ENGINE.format(speed=100), BENCH.format(factor=1))
    git(tree, "add", ".")
    git(tree, "commit", "--quiet", "-m", "base")
    write(tree, ENGINE.format(speed=200), BENCH.format(factor=10))
    return tree


def test_each_engine_runs_the_benchmark_of_the_tree_and_rates_and_times_are_compared(tree) -> None:
    before = git(tree, "status", "--porcelain")
    result = compare("HEAD", "toy", 2, [], tree, quiet)
    assert result["benchmark_of"] == "the working tree"
    # Options do not vary, and other figures are neither rates nor times.
    assert set(result["ratios"]) == {"words_per_second", "nested.p99_ms"}
    rate = result["ratios"]["words_per_second"]
    assert (rate["base"], rate["tree"], rate["ratio"]) == (1000, 2000, 2.0)
    assert result["ratios"]["nested.p99_ms"]["ratio"] == 0.5
    assert git(tree, "status", "--porcelain") == before
    assert git(tree, "worktree", "list").count("\n") == 1


def test_an_engine_that_cannot_run_the_benchmark_of_the_tree_has_both_run_its_own(tree) -> None:
    needs = "import penstock; penstock.NEW\n" + BENCH.format(factor=10)
    write(tree, ENGINE.format(speed=200) + "NEW = 1\n", needs)
    result = compare("HEAD", "toy", 2, ["--fast"], tree, quiet)
    assert result["benchmark_of"].startswith("the revision (")
    assert result["bench"] == "toy --json --fast"
    assert result["ratios"]["words_per_second"]["base"] == 100


def test_engines_that_cannot_run_one_benchmark_run_each_its_own(tree) -> None:
    old = "import penstock; penstock.OLD\n" + BENCH.format(factor=1)
    write(tree, ENGINE.format(speed=100) + "OLD = 1\n", old)
    git(tree, "commit", "--quiet", "--all", "-m", "old names")
    new = "import penstock; penstock.NEW\n" + BENCH.format(factor=10)
    write(tree, ENGINE.format(speed=200) + "NEW = 1\n", new)
    result = compare("HEAD", "toy", 2, [], tree, quiet)
    assert result["benchmark_of"] == "each engine's own"
    rate = result["ratios"]["words_per_second"]
    assert (rate["base"], rate["tree"]) == (100, 2000)


def test_what_cannot_be_compared_is_an_error_that_says_why(tree) -> None:
    with pytest.raises(CompareError, match="give a revision that `git log` knows"):
        compare("nothing", "toy", 2, [], tree, quiet)
    with pytest.raises(CompareError, match="take at least 2"):
        compare("HEAD", "toy", 1, [], tree, quiet)
    with pytest.raises(CompareError, match="bench other --json failed in base: AssertionError"):
        compare("HEAD", "other", 2, [], tree, quiet)


def test_numbers_are_found_wherever_they_are() -> None:
    figures = {"a": 1, "b": {"c": 2.5, "d": True, "e": None}, "all_a": [1, 2], "runs": [{"x": 3}]}
    assert numbers(figures) == {"a": 1.0, "b.c": 2.5, "runs.0.x": 3.0}


def test_an_interval_holds_the_mean_and_widens_with_the_spread() -> None:
    assert interval_95([2.0, 2.0, 2.0]) == pytest.approx((2.0, 2.0, 2.0))
    middle, low, high = interval_95([0.5, 2.0])
    assert middle == pytest.approx(1.0)
    # Two values have one degree of freedom, for which Student's t is 12.706.
    assert math.log(high) == pytest.approx(12.706 * math.log(2), rel=1e-3)
    assert low == pytest.approx(1 / high)
    narrow = interval_95([0.9, 1.1, 0.9, 1.1, 0.9, 1.1])
    assert 0.85 < narrow[1] < 1 < narrow[2] < 1.15
    with pytest.raises(ValueError, match="no spread"):
        interval_95([1.0])
