"""The command line: click commands, thin over the Python API.

Nothing is decided here that a program could not decide itself: commands set `RunOptions` around a
job file, read the snapshot store, or talk to the job service (`penstock.runtime.daemon`). Heavy
modules are imported inside the commands, so that `penstock --help` answers at once.

Start reading at `run.py`; `script.py` is how a job file is run.
"""

from __future__ import annotations

import click

from penstock import __version__
from penstock.cli.run import graph, run
from penstock.cli.service import cancel, jobmanager, list_jobs, submit
from penstock.cli.snapshots import snapshots

__all__ = ["main"]


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="penstock")
def main() -> None:
    """Stateful stream processing in pure Python, exactly once.

    Run a job with "penstock run JOB.py", or start "penstock jobmanager" and hand jobs to it with
    "penstock submit JOB.py".
    """


for _command in (run, graph, snapshots, jobmanager, submit, list_jobs, cancel):
    main.add_command(_command)
