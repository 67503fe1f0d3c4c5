"""Define the options that several commands share, and print errors and messages.

`script.py` runs a job file with these options.
"""

from __future__ import annotations

import errno
import functools
import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from penstock.cli.service_address import ServiceAddress
from penstock.dataflow.config.snapshot_stores import checkpoint_place, is_store_url
from penstock.dataflow.errors import GraphError, PenstockError

Command = TypeVar("Command", bound=Callable[..., Any])

_UNITS = {"ms": 0.001, "s": 1.0, "": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_DURATION = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*(ms|s|min|m|h|)\s*")
_SIZE_UNITS = {
    f"{prefix}{unit}": factor**power
    for power, prefix in enumerate(["", "K", "M", "G", "T"])
    for unit, factor in (("", 1024), ("B", 1000), ("IB", 1024))
}
_SIZE = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([KMGT]?(?:I?B)?)\s*", re.IGNORECASE)


def duration(_: click.Context, __: click.Parameter, value: str | None) -> float | None:
    """Convert a duration such as `200ms`, `2.5s`, `1m` or `3` to seconds.

    Raises `click.BadParameter` if the text is not a duration, or if it is shorter than 1 ms.
    """
    if value is None:
        return None
    found = _DURATION.fullmatch(value)
    if found is None:
        raise click.BadParameter(f"{value!r} is not a time; write 200ms, 1s, 2.5s, 1m or seconds")
    seconds = float(found[1]) * _UNITS[found[2]]
    if seconds < 0.001:
        raise click.BadParameter(f"{value!r} is too short; at least 1ms")
    return seconds


def memory_size(_: click.Context, __: click.Parameter, value: str | None) -> int | None:
    """Convert a size such as `512MB`, `2GB` or `1.5GiB` to bytes.

    Raises `click.BadParameter` if the text is not a size.
    """
    if value is None:
        return None
    found = _SIZE.fullmatch(value)
    size = 0 if found is None else int(float(found[1]) * _SIZE_UNITS[found[2].upper()])
    if size < 1:
        raise click.BadParameter(f"{value!r} is not a size; write 512MB, 2GB or a number of bytes")
    return size


class JobCommand(click.Command):
    """A command that runs a job file, and explains how to pass options to the file."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments.

        Raises `click.UsageError` for an unknown option, with a hint that options of the job file
        are given after `--`.
        """
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            hint = f"Options of the job itself go after --, as in: -- {error.option_name}"
            raise click.UsageError(f"{error.format_message()} {hint}", ctx) from None


@dataclass(frozen=True)
class JobOptions:
    """The options of `run` and `submit`. For None, the program's setting is used.

    Arguments:
        command: the name of the command: "run", "submit" or "graph".
        job: the path of the job file.
        args: the arguments that are passed to the job file.
        name: the name of the job.
        parallelism, checkpoint_dir, fork, allow_dropped, report, in_process: see `RunOptions`.
        sink_markers: the newest published snapshots of sinks, as `UID=NUMBER`.
        checkpoint_interval: the checkpoint interval, in seconds.
        resume: "newest", the number of a snapshot, or the path of a snapshot.
        progress: the way to show progress: "auto", "live", "plain" or "none".
        on_lost_position: "fail" or "earliest".
        claim_mode: "no-claim" or "claim".
        log_level: the name of the log level.
        runtime_mode: the name of the runtime mode.
        extra: further options for the command line that `resume_command` returns.
        params: parameters of the job, as `NAME=VALUE`.
        py_files, py_archives, py_requirements, py_executable: see `python_files`,
            `python_archives`, `python_requirements` and `python_executable` of `JobConfig`.
        install_requirements: whether to install the requirements.
        supervise: whether to start the JobManager again if it dies.
    """

    command: str
    job: str
    args: tuple[str, ...] = ()
    name: str | None = None
    parallelism: int | None = None
    checkpoint_dir: str | None = None
    checkpoint_interval: float | None = None
    resume: str | int | None = None
    fork: bool = False
    allow_dropped: bool = False
    sink_markers: tuple[str, ...] = ()
    report: str | None = None
    progress: str = "auto"
    in_process: bool = False
    on_lost_position: str | None = None
    claim_mode: str | None = None
    log_level: str | None = None
    runtime_mode: str | None = None
    extra: tuple[str, ...] = ()
    params: tuple[str, ...] = ()
    py_files: str | None = None
    py_archives: str | None = None
    py_requirements: str | None = None
    py_executable: str | None = None
    install_requirements: bool = False
    supervise: bool = False

    def job_parameters(self) -> dict[str, str]:
        """Return the parameters of the job, by name."""
        return dict(param.split("=", 1) for param in self.params)

    def markers(self) -> dict[str, int]:
        """Return the newest published snapshots of sinks, by uid."""
        parts = (marker.rpartition("=") for marker in self.sink_markers)
        return {uid: int(number) for uid, _, number in parts}

    def resume_command(self) -> str:
        """Return the command line with which the user can resume from the newest snapshot."""
        words = ["penstock", self.command, self.job]
        for option, value in (
            ("--name", self.name),
            ("--parallelism", self.parallelism),
            ("--checkpoint-dir", self.checkpoint_dir),
            ("--checkpoint-interval", _seconds(self.checkpoint_interval)),
            ("--report", self.report),
            ("--log-level", self.log_level),
            ("--runtime-mode", self.runtime_mode),
            ("--py-files", self.py_files),
            ("--py-archives", self.py_archives),
            ("--py-requirements", self.py_requirements),
            ("--py-executable", self.py_executable),
        ):
            if value is not None:
                words += [option, str(value)]
        if self.install_requirements:
            words.append("--install-requirements")
        if self.in_process:
            words.append("--in-process")
        if self.supervise:
            words.append("--supervise")
        for param in self.params:
            words += ["--param", param]
        words += [*self.extra, "--resume"]
        if self.args:
            words += ["--", *self.args]
        return shlex.join(words)


def _seconds(interval: float | None) -> str | None:
    return None if interval is None else f"{interval:g}s"


def log_level_option(help: str) -> Callable[[Command], Command]:
    """Return a decorator that adds the option `--log-level` to a command."""
    return click.option(
        "--log-level",
        type=click.Choice(["DEBUG", "INFO", "WARNING", "ERROR"], case_sensitive=False),
        help=help,
    )


#: The option `--parallelism` of all commands that run a job file.
parallelism_option = click.option(
    "--parallelism",
    "-p",
    type=click.IntRange(min=1),
    metavar="N",
    help="Number of subtasks of operators for which the program sets none.",
)

#: The option `--py-files`, also of commands that run a job file.
py_files_option = click.option(
    "--py-files",
    "-pyfs",
    metavar="PATHS",
    help="Python files, folders and zip files that the job and its workers can import, "
    "separated by commas.",
)

#: The decorators for the arguments and options of `run` and `submit`, in the order of the help.
_JOB_OPTIONS: tuple[Callable[[Any], Any], ...] = (
    click.argument("job", metavar="JOB.py", required=False),
    click.argument("args", metavar="[-- JOB ARGS]", nargs=-1, type=click.UNPROCESSED),
    click.option("--name", help="Name of the job; a checkpoint folder belongs to one name."),
    parallelism_option,
    click.option(
        "--param",
        "params",
        multiple=True,
        metavar="NAME=VALUE",
        help="A parameter of the job, which functions read with get_job_parameter; may be given "
        "several times.",
    ),
    click.option(
        "--checkpoint-dir",
        metavar="D",
        help="The job's folder of snapshots, created if it does not exist; or the URL of an object "
        "store: s3://bucket/prefix, gs:// or az://.",
    ),
    click.option(
        "--checkpoint-interval",
        callback=duration,
        metavar="T",
        help="Time between two snapshots: 200ms, 1s, 2.5s, 1m, or a number of seconds.",
    ),
    click.option(
        "--resume",
        is_flag=False,
        flag_value="newest",
        metavar="[SNAPSHOT]",
        help="Resume from the newest snapshot, or from the one with this number, path or URL.",
    ),
    click.option(
        "--fork",
        is_flag=True,
        help="With --resume SNAPSHOT: allow an older snapshot, and begin a new line of snapshots. "
        "Output that was published after it is produced again.",
    ),
    click.option(
        "--claim-mode",
        type=click.Choice(["no-claim", "claim"]),
        help="With --fork and a snapshot in another folder: leave it as it is, or own it, and "
        "remove it when it is no longer needed.  [default: no-claim]",
    ),
    click.option(
        "--allow-dropped",
        is_flag=True,
        help="With --resume: drop the state of operators, and the values of dataclass fields, "
        "that the program no longer has.",
    ),
    click.option(
        "--sink-marker",
        "sink_markers",
        metavar="UID=NUMBER",
        multiple=True,
        help="With --resume: the newest snapshot whose output is in the target of a sink, for a "
        "target that has lost its marker.",
    ),
    click.option(
        "--on-lost-position",
        type=click.Choice(["fail", "earliest"]),
        help="What sources do if records behind their positions are gone: end the job, or go on "
        "with the first record that is left.  [default: what each source says]",
    ),
    click.option(
        "--report",
        metavar="FILE.json",
        help="Write records per operator, snapshots, restarts and wall time to this file.",
    ),
    click.option(
        "--progress",
        type=click.Choice(["auto", "live", "plain", "none"]),
        default="auto",
        show_default=True,
        help="How to show the running job on standard error; auto: live on a terminal.",
    ),
    log_level_option("Level of the root logger in the processes of the job."),
    click.option(
        "--runtime-mode",
        type=click.Choice(["streaming", "batch", "automatic"], case_sensitive=False),
        help="Run as a stream, or as a batch with final results only.",
    ),
    py_files_option,
    click.option(
        "--py-archives",
        "-pyarch",
        metavar="PATHS",
        help="Archives that workers unpack into their working directory, separated by commas. "
        "PATH#FOLDER names the folder.",
    ),
    click.option(
        "--py-requirements",
        "-pyreq",
        metavar="FILE",
        help="Requirements file of packages that workers must have. FILE#FOLDER names a folder "
        "with the packages.",
    ),
    click.option(
        "--install-requirements",
        is_flag=True,
        help="Install the requirements into an environment of the job, instead of checking them.",
    ),
    click.option(
        "--py-executable",
        "-pyexec",
        metavar="PYTHON",
        help="Python interpreter of the workers, with the same versions of Python and Penstock.",
    ),
)


def job_options(command: Command) -> Command:
    """Add the job file and the options of `run` and `submit` to a command.

    The command gets them as one argument, `options`, which is a `JobOptions`. It gets its other
    options as separate arguments.
    """

    @functools.wraps(command)
    def with_options(**values: Any) -> Any:
        ctx = click.get_current_context()
        extra = {
            name: values.pop(name)
            for name in list(values)
            if name not in JobOptions.__dataclass_fields__
        }
        return command(options=_checked_options(ctx, values), **extra)

    decorated: Any = with_options
    for decorate in reversed(_JOB_OPTIONS):
        decorated = decorate(decorated)
    return decorated  # type: ignore[no-any-return]


def _checked_options(ctx: click.Context, values: dict[str, Any]) -> JobOptions:
    job, resume = values["job"], values["resume"]
    name = ctx.info_name or ""
    if job is None:
        hint = ""
        if resume is not None and resume.endswith(".py"):
            hint = (
                f" --resume took {resume!r} as the snapshot: write it after the job file, "
                f"penstock {name} {resume} --resume"
            )
        raise click.UsageError(f"Missing the job file, JOB.py.{hint}", ctx)
    if job.startswith("-"):
        raise click.UsageError(f"The job file comes before --, and {job!r} is none.", ctx)
    if resume is None and (values["fork"] or values["allow_dropped"]):
        option = "--fork" if values["fork"] else "--allow-dropped"
        raise click.UsageError(f"{option} goes together with --resume.", ctx)
    if values["claim_mode"] is not None and not values["fork"]:
        raise click.UsageError("--claim-mode goes together with --fork.", ctx)
    if resume is None and values["sink_markers"]:
        raise click.UsageError("--sink-marker goes together with --resume.", ctx)
    for marker in values["sink_markers"]:
        if not re.fullmatch(".+=[0-9]+", marker):
            raise click.UsageError(f"--sink-marker {marker!r} is not UID=NUMBER.", ctx)
    if resume == "newest" and values["fork"]:
        raise click.UsageError("--fork goes with the number or path of a snapshot: --resume 7", ctx)
    if resume is not None and resume.isascii() and resume.isdigit():
        values["resume"] = int(resume)
    for param in values["params"]:
        if not re.match("[^=]+=", param):
            raise click.UsageError(f"--param {param!r} is not NAME=VALUE.", ctx)
    if is_store_url(resume) and not values["fork"]:
        # The job goes on in the store that has its snapshots.
        if values["checkpoint_dir"] not in (None, resume):
            raise click.UsageError(
                f"--resume {resume} goes on in that store; --checkpoint-dir "
                f"{values['checkpoint_dir']} would begin a second line of output beside it: leave "
                f"it out, or add --fork.",
                ctx,
            )
        values["checkpoint_dir"], values["resume"] = resume, "newest"
    directory = values["checkpoint_dir"]
    if directory is not None:
        try:
            values["checkpoint_dir"] = checkpoint_place(directory)
        except GraphError as error:
            raise click.UsageError(f"--checkpoint-dir: {error}.", ctx) from None
        if not values["checkpoint_dir"]:
            raise click.UsageError("--checkpoint-dir is empty.", ctx)
    if values["report"] is not None:
        _check_report(Path(values["report"]), ctx)
    return JobOptions(name, **values)


def _check_report(path: Path, ctx: click.Context) -> None:
    # The path is checked before the job runs, since the report is written at the end of the job.
    if path.is_dir():
        raise click.UsageError(f"--report {path} is a folder; give a file.", ctx)
    if not path.absolute().parent.is_dir():
        raise click.UsageError(f"--report {path}: there is no folder {path.parent}.", ctx)


def reporting_errors(command: Command) -> Command:
    """Wrap a command, so that it exits with code 1 if it raises a `PenstockError` or `OSError`.

    The message of the error is printed on standard error. An `OSError` is raised, for example, if
    standard output is a file on a full disk.
    """

    @functools.wraps(command)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        try:
            return command(*args, **kwargs)
        except PenstockError as error:
            print_message(f"Error: {error}")
            raise SystemExit(1) from None
        except OSError as error:
            if error.errno in (errno.EPIPE, None):
                raise  # click handles the end of a pipe
            where = f" [{error.filename}]" if error.filename else ""
            print_message(f"Error: {error.strerror}{where}")
            raise SystemExit(1) from None

    return guarded  # type: ignore[return-value]


def print_message(text: str) -> None:
    """Print a message on standard error, since the job may write to standard output."""
    click.echo(text, err=True)


def state_folder_option(command: Command) -> Command:
    """Add the option `--dir` to a command.

    Its value is the path of the job service's state folder, or None.
    """
    return click.option(
        "--dir",
        "directory",
        type=click.Path(path_type=Path, file_okay=False),
        metavar="D",
        help="State folder of the service; by default $PENSTOCK_HOME, else ~/.penstock.",
    )(command)


def service_options(command: Command) -> Command:
    """Add the options `--dir`, `--service` and `--token-file` to a command.

    The command gets them as one argument, `service`, which is a `ServiceAddress`.
    """

    @functools.wraps(command)
    def with_service(**values: Any) -> Any:
        directory, url = values.pop("directory"), values.pop("service_url")
        file = values.pop("token_file")
        ctx = click.get_current_context()
        given = ctx.get_parameter_source("service_url") is ParameterSource.COMMANDLINE
        if directory is not None and given:
            raise click.UsageError("--dir is for a service of this machine, without --service.")
        if directory is not None:
            url = None  # the option counts more than the variable of the environment
        if file is not None and url is None:
            raise click.UsageError("--token-file goes together with --service.")
        return command(service=ServiceAddress(directory, url, file), **values)

    decorated: Any = with_service
    for decorate in (
        click.option(
            "--token-file",
            type=click.Path(path_type=Path, dir_okay=False),
            metavar="FILE",
            help="With --service: file with the token; by default $PENSTOCK_TOKEN has it.",
        ),
        click.option(
            "--service",
            "service_url",
            metavar="URL",
            envvar="PENSTOCK_SERVICE",
            help="HTTP API of a service on another machine, https://HOST:PORT; by default "
            "$PENSTOCK_SERVICE.",
        ),
        state_folder_option,
    ):
        decorated = decorate(decorated)
    return decorated  # type: ignore[no-any-return]
