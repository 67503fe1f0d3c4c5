"""Print the script that lets a shell complete commands, options and the ids of jobs."""

from __future__ import annotations

import click
from click.shell_completion import CompletionItem, get_completion_class

#: The name of the command, and of the variable by which the script asks for completions.
_PROGRAM, _VARIABLE = "penstock", "_PENSTOCK_COMPLETE"


@click.command(short_help="Print the script for shell completion.")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the script that lets a shell complete commands, options and the ids of jobs.

    \b
    Examples:
      eval "$(penstock completion bash)"    # in ~/.bashrc
      eval "$(penstock completion zsh)"     # in ~/.zshrc
      penstock completion fish > ~/.config/fish/completions/penstock.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(ctx.find_root().command, {}, _PROGRAM, _VARIABLE).source())


def complete_job(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the ids of the recorded jobs that begin with a text, with their names and states."""
    from penstock.runtime.dispatcher.job_registry import JobRegistry
    from penstock.runtime.dispatcher.state_folder import StateFolder

    registry = JobRegistry(StateFolder(ctx.params.get("directory")).jobs)
    try:
        registry.load()
    except OSError:
        return []
    return [
        CompletionItem(job.id, help=f"{job.name}: {job.state}")
        for job in registry.records
        if job.id.startswith(incomplete)
    ]
