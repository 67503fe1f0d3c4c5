"""Random jobs, disturbed at random: nothing is lost, and nothing doubled that must not be.

Goal: whatever a program consists of (keyed state, hooks, loops, splits that never end), in every
checkpointing mode, after kills of workers and of the JobManager, orderly stops and resumes in
another mode or at another parallelism, its committed output is that of an undisturbed run. With at
least once, records may be repeated after a failure, but not after a stop.

Method: `tests/simulation/random_jobs`. `make simulate SEEDS=10000` runs more of them. A failure
names its seed, and the command that runs that program again.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from penstock.connectors.cache import COMPLETE, CacheSink, RecordCache
from tests.simulation.engine_mutants import MUTANTS, SEEDS
from tests.simulation.random_jobs.__main__ import run_chunk
from tests.simulation.random_jobs.caches import run_cache_case
from tests.simulation.random_jobs.job import FiniteJob, draw_job
from tests.simulation.random_jobs.runner import run_case, shrunk, simplified
from tests.simulation.random_jobs.tally import describe
from tests.sizes import sized

PROGRAMS, PART = sized(90, 3_000), 30


@pytest.mark.parametrize("first", range(0, PROGRAMS, PART))
def test_random_jobs_lose_and_double_nothing(first: int) -> None:
    tally, failures = run_chunk(range(first, first + PART))
    assert not failures, "\n\n".join(failures)
    assert not tally.missed(), f"too little happened: {tally.table()}"


@pytest.mark.parametrize("seed", range(sized(6, 300)))
def test_the_same_seed_gives_the_same_case(seed: int) -> None:
    first, second = run_case(seed), run_case(seed)
    assert first.log == second.log
    assert first.happened == second.happened


def test_a_cached_stream_that_is_read_before_it_is_complete_is_found_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sink = RecordCache.sink

    def complete_at_once(cache: RecordCache, resumed: bool) -> CacheSink:
        made = sink(cache, resumed)
        (Path(made.folder) / COMPLETE).touch()
        return made

    monkeypatch.setattr(RecordCache, "sink", complete_at_once)
    wrong = next((case for case in map(run_cache_case, range(100)) if not case.right), None)
    assert wrong is not None and wrong.lost and not wrong.crashes


#: The mutants of `make simulate-mutants` that a few seeds find.
QUICK = ["no alignment", "early broadcast", "channel log", "fsync"]


@pytest.mark.parametrize("name", sized(QUICK, list(MUTANTS)))
def test_a_wrong_engine_is_found_out(name: str) -> None:
    assert MUTANTS[name].first_wrong(range(SEEDS)) is not None


def test_a_job_with_one_source_has_none_beside_its_shape() -> None:
    drawn = (draw_job(random.Random(seed), seed, False, ()) for seed in range(100))
    job = next(job for job in drawn if isinstance(job, FiniteJob) and job.beside)
    simpler = simplified(job, ["sources"])
    assert isinstance(simpler, FiniteJob)
    assert (simpler.sources, simpler.beside) == (1, False)


def test_a_failing_case_is_shrunk() -> None:
    mutant = MUTANTS["no alignment"]
    with pytest.MonkeyPatch.context() as patch:
        mutant.patch(patch)
        wrong = next(
            result for seed in range(SEEDS) if not (result := run_case(seed, mutant.modes)).right
        )
        faults, plain = shrunk(wrong, mutant.modes)
        smaller = run_case(wrong.seed, mutant.modes, faults=faults, plain=plain)
    assert len(faults) < len(wrong.faults) and not smaller.right
    assert f"--faults {','.join(faults) or 'none'}" in describe(wrong, (faults, plain))
