"""Run a job file in the simulator: `penstock simulate`."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from penstock.cli.options import (
    JobCommand,
    JobOptions,
    parallelism_option,
    print_message,
    reporting_errors,
)

if TYPE_CHECKING:
    from penstock.dataflow.graph.job_graph import OperatorOutput
    from penstock.dataflow.program import Program
    from penstock.testing.simulation import Simulation, SimulationReport

#: The shortest time between two lines of progress that go to a file, in seconds.
_LINE_SECONDS = 10.0


@click.command(cls=JobCommand, short_help="Run a job under simulated failures.")
@click.argument("job", metavar="JOB.py")
@click.argument("args", metavar="[-- JOB ARGS]", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "--seeds",
    type=click.IntRange(min=1),
    default=100,
    show_default=True,
    metavar="N",
    help="Number of seeds: 0, 1, 2 and so on. Each has failures of its own.",
)
@click.option("--seed", type=int, metavar="N", help="Run this seed alone.")
@click.option("--trace", is_flag=True, help="With --seed: print what happens, with virtual times.")
@click.option(
    "--timeline",
    metavar="FILE",
    help="With --seed: write an HTML page that shows when processes lived and what happened.",
)
@click.option(
    "--faults",
    metavar="KINDS",
    help="Kinds of failures, separated by commas: kill, pause, slow, cut, delay, clock, disk, "
    "torn, corrupt, decline, savepoint, read, stop, rescale. By default all but corrupt, and "
    "rescale only if the parallelism is above 1.",
)
@click.option(
    "--jobs",
    "-j",
    type=click.IntRange(min=1),
    metavar="N",
    help="Number of processes; by default one for each processor.",
)
@parallelism_option
@click.option(
    "--output",
    metavar="FILE",
    help="Write the output of a run without failures to this file, and run no seeds.",
)
@reporting_errors
def simulate(job: str, args: tuple[str, ...], parallelism: int | None, **asked: Any) -> None:
    """Run a job in one process with virtual time, under many seeds, each with its own failures.

    JOB.py is run up to its first env.execute() or execute_and_collect(). Its output is compared
    with that of an undisturbed run; sinks are replaced, so nothing is written. The exit code is 1
    if a record was lost or doubled under a seed. A seed always gives the same run.

    \b
    Examples:
      penstock simulate job.py --seeds 200
      penstock simulate job.py --seed 17 --trace
    """
    from penstock.cli.script import run_job

    for name in ("trace", "timeline"):
        if asked[name] and asked["seed"] is None:
            raise click.UsageError(f"--{name} goes together with --seed.")
    options = JobOptions("simulate", job, args, parallelism=parallelism, progress="none")
    raise SystemExit(run_job(options, _SimulatingExecutor(options, asked)))


class _SimulatingExecutor:
    """An executor that simulates a program instead of running it.

    Arguments:
        options: the options of the job file.
        asked: the options of the simulation.
    """

    def __init__(self, options: JobOptions, asked: dict[str, Any]) -> None:
        self._options, self._asked = options, asked

    def execute(self, program: Program) -> NoReturn:
        """Simulate the program, and end the job file by raising `SystemExit`."""
        from penstock.testing.simulation import DEFAULT_FAULTS, Simulation

        faults = DEFAULT_FAULTS
        if self._asked["faults"] is not None:
            faults = tuple(name.strip() for name in self._asked["faults"].split(","))
        elif program.config.parallelism == 1:
            faults = tuple(name for name in faults if name != "rescale")
        alone = self._asked["output"] or self._asked["seed"] is not None
        jobs = 1 if alone else self._asked["jobs"] or os.cpu_count() or 1
        raise SystemExit(self._simulate(Simulation(program, faults, jobs)))

    def collect(self, program: Program, outputs: Sequence[OperatorOutput]) -> NoReturn:
        """Simulate the program with a sink that would collect records; end the job file."""
        from penstock.testing.simulation.simulation import add_collecting_sink

        add_collecting_sink(program, outputs)
        self.execute(program)

    def _simulate(self, simulation: Simulation) -> int:
        asked = self._asked
        if asked["output"] or asked["seed"] is not None:
            report = simulation.begin()
            if not report.right:
                click.echo(str(report))
                return 1
            if asked["seed"] is not None:
                return self._one(simulation, asked["seed"])
            Path(asked["output"]).write_text("".join(f"{line}\n" for line in simulation.output))
            return 0
        with self._in_other_process() as lines:
            report = simulation.begin()
            if not report.right:
                click.echo(str(report))
                return 1
            other = lines()
        if other is not None and other != simulation.output:
            self._order_of_sets(simulation.output, other)
            return 1
        return self._all(simulation, report)

    def _one(self, simulation: Simulation, seed: int) -> int:
        result = simulation.run(seed)
        if self._asked["trace"]:
            for line in result.trace:
                click.echo(line)
        if self._asked["timeline"]:
            from penstock.testing.simulation.timeline import timeline

            title = f"{Path(self._options.job).name}, seed {seed}"
            Path(self._asked["timeline"]).write_text(timeline(result, title), encoding="utf-8")
        for cause in result.schedule.causes:
            click.echo(f"drawn: {cause}")
        failure = simulation.failure(result)
        if failure is None:
            happened = " · ".join(f"{what} {often}" for what, often in result.happened.items())
            click.echo(f"seed {seed}: all right · {happened}")
            return 0
        click.echo(str(failure))
        for cause in simulation.causes(failure):
            click.echo(f"cause: {cause}")
        return 1

    def _all(self, simulation: Simulation, report: SimulationReport) -> int:
        seeds = range(self._asked["seeds"])
        last, terminal = time.monotonic(), sys.stderr.isatty()
        for _ in simulation.run_all(seeds, report):
            text = f"{report.seeds:,} of {len(seeds):,} seeds · {len(report.failures):,} failed"
            if terminal:
                click.echo(f"\r{text}", nl=report.seeds == len(seeds), err=True)
            elif time.monotonic() - last > _LINE_SECONDS:
                last = time.monotonic()
                print_message(text)
        click.echo(str(report))
        if not report.failures:
            return 0
        first = report.failures[0]
        click.echo(f"it happens with: {'; '.join(first.result.schedule.causes) or '-'}")
        click.echo(f"replay with: {self._replay(first.result.seed)}")
        return 1

    def _replay(self, seed: int) -> str:
        words = ["penstock", "simulate", self._options.job, "--seed", str(seed), "--trace"]
        for name in ("faults", "parallelism"):
            value = self._asked.get(name) or getattr(self._options, name, None)
            if value is not None:
                words += [f"--{name}", str(value)]
        return " ".join([*words, *(["--", *self._options.args] if self._options.args else [])])

    @contextmanager
    def _in_other_process(self) -> Iterator[Callable[[], list[str] | None]]:
        """Run the program in another process, in which the hashes of strings differ.

        Yields:
            A function that waits for the output, and returns its lines; None if the process failed.
        """
        with tempfile.TemporaryDirectory(prefix="simulation-") as folder:
            output = Path(folder) / "output"
            process = self._start_other_process(output)

            def lines() -> list[str] | None:
                if process.wait() == 0:
                    return output.read_text().splitlines()
                print_message(
                    f"note: with another PYTHONHASHSEED, the job fails in another process (exit "
                    f"code {process.returncode}), so its output is not compared"
                )
                return None

            try:
                yield lines
            finally:
                process.kill()
                process.wait()

    def _start_other_process(self, output: Path) -> subprocess.Popen[bytes]:
        options = self._options
        command = [sys.executable, "-m", "penstock", "simulate", options.job]
        command += ["--output", str(output)]
        if options.parallelism is not None:
            command += ["--parallelism", str(options.parallelism)]
        number = 1 if os.environ.get("PYTHONHASHSEED") != "1" else 2
        return subprocess.Popen(
            [*command, "--", *options.args],
            env={
                **os.environ,
                "PYTHONHASHSEED": str(number),
                "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    @staticmethod
    def _order_of_sets(here: list[str], there: list[str]) -> None:
        other = next(line for line in (*there, *here) if (line in here) != (line in there))
        click.echo(
            f"failed: the program is not deterministic: in a process with another PYTHONHASHSEED "
            f"its output differs, for example by {other}\n"
            f"cause: the order of a set, or hash() of a string. After a failure, a new process "
            f"processes records again with another order. Use sorted(), or a dict"
        )
