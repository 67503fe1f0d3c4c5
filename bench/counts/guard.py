"""`make bench-guard`: does the engine do more for a record than that of a release?

The counts of `bench.counts` are the same each time. So one run on either engine is enough, and a
busy machine does not matter. Both engines run the jobs of the working tree. If the engine of the
revision cannot run them, it runs its own.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from bench.compare import BENCH, ENGINE, ROOT, CompareError, check_out, run_module

__all__ = ["ALLOWED", "grown", "guard", "parse"]

#: A figure may be so many times that of the revision.
ALLOWED = 1.1
#: Figures that differ by no more than this are alike: a few more calls per batch do not matter.
_LEAST = 0.05
#: A line of the table that `python -m bench.counts` prints.
_LINE = re.compile(r"^([a-z_]+\.[a-z_]+)\s+([-+.e\d]+)\s", re.MULTILINE)


def guard(revision: str, root: Path = ROOT) -> None:
    """Print the counts of a revision and of the working tree, and exit with 1 if some have grown.

    Arguments:
        revision: the revision, as git names it.
        root: the working tree.
    """
    try:
        before, after = _counts(revision, root)
    except CompareError as error:
        sys.exit(f"bench.counts: {error}")
    for name, value in after.items():
        was = f"{before[name]:12g}" if name in before else f"{'none':>12}"
        print(f"{name:28}{was}{value:12g}")
    if found := grown(before, after):
        sys.exit(
            f"bench.counts: the engine does more for a record than that of {revision}\n  "
            + "\n  ".join(found)
            + "\nfind out where with `python -m bench.counts --top 10`, here and there"
        )


def grown(before: dict[str, float], after: dict[str, float]) -> list[str]:
    """Return a line for each figure that has grown by more than a tenth, or is gone."""
    lines = []
    for name, was in before.items():
        now = after.get(name)
        least = 0.0 if name.endswith("messages") else _LEAST
        if now is None:
            lines.append(f"{name} is not counted any more")
        elif now > max(was * ALLOWED, was + least):
            percent = f" ({now / was - 1:+.0%})" if was else ""
            lines.append(f"{name} grew from {was:g} to {now:g} per record{percent}")
    return lines


def parse(table: str) -> dict[str, float]:
    """Return the figures of the table that `python -m bench.counts` prints."""
    return {name: float(value) for name, value in _LINE.findall(table)}


def _counts(revision: str, root: Path) -> tuple[dict[str, float], dict[str, float]]:
    with tempfile.TemporaryDirectory(prefix="penstock-guard-") as folder:
        base, tree = Path(folder, "base"), Path(folder, "tree")
        check_out(root, revision, base)
        for part in (ENGINE, BENCH):
            shutil.copytree(root / part, tree / part, ignore=shutil.ignore_patterns("__pycache__"))
        after, _ = _run(tree)
        own = base / f"{BENCH}-of-base"
        if (base / BENCH).exists():
            (base / BENCH).rename(own)
        shutil.copytree(tree / BENCH, base / BENCH)
        before, said = _run(base)
        if not before and own.exists():
            print(f"{revision} cannot run these jobs ({said}), and runs its own")
            shutil.rmtree(base / BENCH)
            own.rename(base / BENCH)
            before, said = _run(base)
        if not before or not after:
            raise CompareError(f"there are no counts: {said}")
    return before, after


def _run(place: Path) -> tuple[dict[str, float], str]:
    """Return the counts of the engine in a folder, and the last line of its errors.

    A count above its recorded bound is no error here.
    """
    done: subprocess.CompletedProcess[str] = run_module(place, "bench.counts", [])
    last = (done.stderr.strip().splitlines() or ["it printed nothing"])[-1]
    return parse(done.stdout), last
