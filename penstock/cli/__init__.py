"""The command line, made of click commands that call the Python API.

A command runs a job file with `RunOptions`, reads the snapshot store, or sends requests to the job
service (`penstock.runtime.dispatcher`). Modules that are slow to import are imported inside the
commands, so that `penstock --help` is fast.

Start reading at `run.py`. The module `script.py` runs the job file.
"""

from __future__ import annotations

import signal
import threading
from typing import Any

import click

import penstock.cli.snapshot_check
import penstock.cli.snapshot_data  # noqa: F401  (adds commands)
from penstock import __version__
from penstock.cli.completion import completion
from penstock.cli.docs import docs
from penstock.cli.job_commands import cancel, logs, rescale, restart, savepoint, show, stop
from penstock.cli.job_report import report
from penstock.cli.options import print_message, reporting_errors
from penstock.cli.run import graph, run
from penstock.cli.service import jobmanager, list_jobs, submit
from penstock.cli.simulate import simulate
from penstock.cli.snapshots import snapshots
from penstock.cli.state_query import query
from penstock.cli.tail import tail
from penstock.cli.top import top
from penstock.cli.upgrade import upgrade
from penstock.dataflow.platforms import require_linux

__all__ = ["main"]


class _Commands(click.Group):
    """A group of commands that exit with code 130 after a Ctrl-C.

    By default, Click prints "Aborted!" and exits with code 1.
    """

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command. After a Ctrl-C, print "stopped" and exit with code 130."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            _ignore_more()
            print_message("stopped")
            raise SystemExit(130) from None
        except SystemExit as exit:
            if exit.code in (130, 143):
                _ignore_more()
            raise


def _ignore_more() -> None:
    """Ignore further SIGINT and SIGTERM, so that they do not change the exit code."""
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="penstock")
@click.pass_context
@reporting_errors
def main(ctx: click.Context) -> None:
    """Stateful stream processing in pure Python, exactly once.

    Run a job with "penstock run JOB.py", or start "penstock jobmanager" and submit jobs to it with
    "penstock submit JOB.py". "penstock docs" lists the pages of the documentation.

    \b
    Example:
      penstock run job.py --checkpoint-dir snapshots
    """
    if ctx.invoked_subcommand != "docs":
        require_linux()


for _command in (run, graph, simulate, snapshots, jobmanager, submit, list_jobs, top, show, logs):
    main.add_command(_command)
for _command in (
    query,
    tail,
    cancel,
    stop,
    savepoint,
    rescale,
    upgrade,
    restart,
    report,
    completion,
    docs,
):
    main.add_command(_command)
