"""Run random jobs on the simulated cluster, many or one, each under its own seed.

    python -m tests.simulation.random_jobs --seeds 10000
    python -m tests.simulation.random_jobs --seed 1234 --verbose
    python -m tests.simulation.random_jobs --seeds 500 --mode "at least once" --faults kill,pause

It prints progress with the seeds per second, and one line with the sums. For each failing program,
it prints what happened, the command that runs it again, and one with fewer faults and operators.
The exit status is 1 if a program lost or doubled a record or hung, or if too few faults happened to
mean anything.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial

from penstock.testing.simulation import FAULTS
from tests.simulation.random_jobs.caches import CACHED, run_cache_case
from tests.simulation.random_jobs.job import FiniteJob
from tests.simulation.random_jobs.runner import PLAIN, CaseResult, run_case, shrunk
from tests.simulation.random_jobs.settings import MODES
from tests.simulation.random_jobs.tally import Tally, describe

#: One of so many programs has a cached stream, and several executions.
CACHED_SHARE = 10
#: Programs that a process runs before it reports.
CHUNK = 10
Chunk = tuple[Tally, list[str]]
#: Programs below which no number of faults is expected.
FEW = 100


def main() -> int:
    """Run the programs that the command line asks for; return the exit status."""
    options = _parser().parse_args()
    modes = [options.mode] if options.mode else None
    faults = tuple(options.faults.split(",")) if options.faults != "none" else ()
    plain = tuple(options.plain.split(",")) if options.plain else ()
    if unknown := set(faults) - set(FAULTS):
        raise SystemExit(f"no fault {sorted(unknown)[0]!r}: the faults are {', '.join(FAULTS)}")
    first, number = options.first, options.seeds
    if options.seed is not None:
        first, number = options.seed, 1
    seeds = range(first, first + number)
    tally, began = Tally(), time.monotonic()
    run = partial(run_chunk, modes=modes, faults=faults, plain=plain)
    for part, failures in _parts(seeds, run, options.processes):
        tally.merge(part)
        for failure in failures:
            print(f"\n{failure}", flush=True)
        if not options.verbose:
            _progress(tally, number, time.monotonic() - began)
    if options.verbose and number == 1:
        print(_story(run_one(first, modes, faults, plain)))
    print(f"\n{tally.table()}")
    whole = modes is None and faults == tuple(FAULTS)
    missed = tally.missed() if number >= FEW and whole else {}
    if missed:
        print(f"too little happened: {missed}")
    seconds = time.monotonic() - began
    print(f"{tally.summary()} · {number / seconds:.1f} seeds/s in {seconds:.0f} s")
    if tally.failed:
        print(f"failed: {', '.join(map(str, sorted(tally.failed)))}")
    return 1 if tally.failed or missed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.random_jobs")
    parser.add_argument("--seeds", type=int, default=1000, help="how many programs (1000)")
    parser.add_argument("--first", type=int, default=0, help="seed of the first program (0)")
    parser.add_argument("--seed", type=int, help="run this seed alone")
    parser.add_argument("--mode", choices=[*MODES, CACHED], help="run all programs in this mode")
    parser.add_argument("--faults", default=",".join(FAULTS), help="kinds of faults (all)")
    parser.add_argument("--plain", help=f"simpler parts of a program: {', '.join(PLAIN)}")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--verbose", action="store_true", help="with one program, tell its story")
    return parser


def _parts(seeds: range, run: Callable[[range], Chunk], processes: int) -> Iterator[Chunk]:
    chunks = [seeds[at : at + CHUNK] for at in range(0, len(seeds), CHUNK)]
    if processes == 1 or len(chunks) == 1:
        yield from map(run, chunks)
        return
    with ProcessPoolExecutor(processes, initializer=_be_quiet) as pool:
        for future in as_completed([pool.submit(run, chunk) for chunk in chunks]):
            yield future.result()


def _be_quiet() -> None:
    logging.disable(logging.CRITICAL)  # targets fail on purpose, and say so


def run_chunk(
    seeds: range,
    modes: list[str] | None = None,
    faults: Sequence[str] = tuple(FAULTS),
    plain: Sequence[str] = (),
) -> Chunk:
    """Run some programs; return their sums, and a description of each that went wrong."""
    tally, failures = Tally(), []
    for seed in seeds:
        result = run_one(seed, modes, faults, plain)
        tally.add(result)
        if not result.right:
            # A smaller case of one that hangs takes long, and so does each that is tried.
            shrinks = isinstance(result.job, FiniteJob) and not (result.hung or plain)
            failures.append(describe(result, shrunk(result, modes) if shrinks else None))
    return tally, failures


def run_one(
    seed: int,
    modes: list[str] | None = None,
    faults: Sequence[str] = tuple(FAULTS),
    plain: Sequence[str] = (),
) -> CaseResult:
    """Run the program of a seed."""
    cached = seed % CACHED_SHARE == CACHED_SHARE - 1 if modes is None else modes == [CACHED]
    return run_cache_case(seed) if cached else run_case(seed, modes, faults=faults, plain=plain)


def _progress(tally: Tally, cases: int, seconds: float) -> None:
    done = tally.programs.total()
    speed = f"{done / seconds:.1f} seeds/s"
    line = f"{done} of {cases} in {seconds:.0f} s, {speed}: {tally.summary()}"
    if sys.stdout.isatty():
        print(f"\r{line}", end="", flush=True)
    elif done * 50 // cases > (done - CHUNK) * 50 // cases:
        print(line, flush=True)


def _story(result: CaseResult) -> str:
    crashes = ["".join(traceback.format_exception(error)) for error in result.crashes]
    return "\n".join([describe(result), *crashes])


if __name__ == "__main__":
    sys.exit(main())
