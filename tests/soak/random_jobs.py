"""Runs random jobs on the simulated cluster, many or one: see `tests/simulation/random_jobs`.

    python -m tests.soak.random_jobs --cases 10000
    python -m tests.soak.random_jobs --cases 1 --seed 1234 --verbose
    python -m tests.soak.random_jobs --cases 500 --mode "at least once"

Prints progress, what each failing program did, and one line with the sums. The exit status is 1 if
a program lost or doubled a record or hung, or if too few faults happened to mean anything.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import traceback
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial

from tests.simulation.random_jobs.caches import CACHED, run_cache_case
from tests.simulation.random_jobs.runner import CaseResult, run_case
from tests.simulation.random_jobs.settings import MODES
from tests.simulation.random_jobs.tally import Tally, describe

#: One of so many programs has a cached stream, and several executions.
CACHED_SHARE = 10
#: Programs that a process runs before it reports.
CHUNK = 10
#: Programs below which no number of faults is expected.
FEW = 100


def main() -> int:
    """Run the programs that the command line asks for; return the exit status."""
    options = _parser().parse_args()
    modes = [options.mode] if options.mode else None
    seeds = range(options.seed, options.seed + options.cases)
    tally, began = Tally(), time.monotonic()
    for part, failures in _parts(seeds, modes, options.processes):
        tally.merge(part)
        for failure in failures:
            print(f"\n{failure}", flush=True)
        if not options.verbose:
            _progress(tally, options.cases, time.monotonic() - began)
    if options.verbose and options.cases == 1:
        print(_story(run_one(options.seed, modes)))
    print(f"\n{tally.table()}")
    missed = tally.missed() if options.cases >= FEW and modes is None else {}
    if missed:
        print(f"too little happened: {missed}")
    print(tally.summary())
    return 1 if tally.failed or missed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.soak.random_jobs")
    parser.add_argument("--cases", type=int, default=1000, help="how many programs (1000)")
    parser.add_argument("--seed", type=int, default=0, help="of the first program (0)")
    parser.add_argument("--mode", choices=[*MODES, CACHED], help="run all programs in this mode")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--verbose", action="store_true", help="with one program, tell its story")
    return parser


def _parts(
    seeds: range, modes: list[str] | None, processes: int
) -> Iterator[tuple[Tally, list[str]]]:
    chunks = [seeds[at : at + CHUNK] for at in range(0, len(seeds), CHUNK)]
    run = partial(run_chunk, modes=modes)
    if processes == 1 or len(chunks) == 1:
        yield from map(run, chunks)
        return
    with ProcessPoolExecutor(processes) as pool:
        for future in as_completed([pool.submit(run, chunk) for chunk in chunks]):
            yield future.result()


def run_chunk(seeds: range, modes: list[str] | None = None) -> tuple[Tally, list[str]]:
    """Run some programs; return their sums, and a description of each that went wrong."""
    tally, failures = Tally(), []
    for seed in seeds:
        result = run_one(seed, modes)
        tally.add(result)
        if not result.right:
            failures.append(describe(result))
    return tally, failures


def run_one(seed: int, modes: list[str] | None = None) -> CaseResult:
    """Run the program of a seed."""
    cached = seed % CACHED_SHARE == CACHED_SHARE - 1 if modes is None else modes == [CACHED]
    return run_cache_case(seed) if cached else run_case(seed, modes)


def _progress(tally: Tally, cases: int, seconds: float) -> None:
    line = f"{tally.programs.total()} of {cases} in {seconds:.0f} s: {tally.summary()}"
    if sys.stdout.isatty():
        print(f"\r{line}", end="", flush=True)
    elif tally.programs.total() * 20 // cases > (tally.programs.total() - CHUNK) * 20 // cases:
        print(line, flush=True)


def _story(result: CaseResult) -> str:
    crashes = ["".join(traceback.format_exception(error)) for error in result.crashes]
    return "\n".join([describe(result), *crashes])


if __name__ == "__main__":
    sys.exit(main())
