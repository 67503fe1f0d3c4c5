"""The command line: click commands, thin over the Python API.

Nothing is decided here that a program could not decide itself: commands set `RunOptions` around a
job file, read the snapshot store, or talk to the job service
(`penstock.runtime.dispatcher.dispatcher`). Heavy modules are imported inside the commands, so that
`penstock --help` answers at once.

Start reading at `run.py`; `script.py` is how a job file is run.
"""

from __future__ import annotations

import signal
import threading
from typing import Any

import click

from penstock import __version__
from penstock.cli.options import say
from penstock.cli.run import graph, run
from penstock.cli.service import cancel, jobmanager, list_jobs, submit
from penstock.cli.snapshots import snapshots

__all__ = ["main"]


class _Commands(click.Group):
    """Commands that end with 130 after a Ctrl-C, whenever it comes.

    Click itself would print "Aborted!" and end with 1.
    """

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            _ignore_more()
            say("stopped")
            raise SystemExit(130) from None
        except SystemExit as exit:
            if exit.code in (130, 143):
                _ignore_more()
            raise


def _ignore_more() -> None:
    """Let a second signal not change how the program ends."""
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="penstock")
def main() -> None:
    """Stateful stream processing in pure Python, exactly once.

    Run a job with "penstock run JOB.py", or start "penstock jobmanager" and hand jobs to it with
    "penstock submit JOB.py".
    """


for _command in (run, graph, snapshots, jobmanager, submit, list_jobs, cancel):
    main.add_command(_command)
