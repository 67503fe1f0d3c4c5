"""Show records that travel on an edge of a job of the service: `penstock tail`."""

from __future__ import annotations

import json
from datetime import datetime

import click

from penstock.cli.job_commands import job_command
from penstock.cli.options import print_message
from penstock.cli.service_address import ServiceAddress

#: How long the tasks look for one answer, in seconds. An answer comes as often.
LOOK_SECONDS = 1.0


@click.command(short_help="Show records that travel on an edge of a job.")
@job_command
@click.option(
    "--edge",
    default="",
    metavar="A->B",
    help="The edge: its number, or the uids or names of its operators.",
)
@click.option(
    "--limit",
    type=click.IntRange(1, 1_000),
    default=20,
    show_default=True,
    metavar="N",
    help="Number of records of each task and second.",
)
@click.option("--once", is_flag=True, help="Look for one second, and end.")
def tail(
    job_id: str, service: ServiceAddress, as_json: bool, edge: str, limit: int, once: bool
) -> None:
    """Show some of the records that the tasks of the job ID send over an edge.

    The tasks take the first record of a batch now and then, while the command runs. Ctrl-C ends it.
    A wrong edge is answered with the edges of the job.

    \b
    Examples:
      penstock tail 3 --edge "clicks->numbers"
      penstock tail 3 --edge 0 --once --json
    """
    from penstock.runtime.control.requests import SampleEdge

    request = SampleEdge(job_id, edge, limit, LOOK_SECONDS)
    while True:
        with service.connect() as connection:
            answer = connection.ask(request)
        for subtask, time_ms, text in answer["records"]:
            if as_json:
                click.echo(json.dumps({"subtask": subtask, "time": time_ms, "record": text}))
            else:
                at = datetime.fromtimestamp(time_ms / 1000).strftime("%H:%M:%S.%f")[:-3]
                click.echo(f"{at}  {subtask}  {text}")
        if once:
            seen, shown = answer["seen"], len(answer["records"])
            edge = f"{answer['producer']}->{answer['consumer']}"
            print_message(f"{edge}: {shown} of {seen:,} records in {LOOK_SECONDS:g} s")
            return
