"""Run job files for clients of the service, and keep the files that they have sent."""

from __future__ import annotations

import io
import json
import os
import secrets
import shutil
import subprocess
import time
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import trio

from penstock.runtime.control.requests import Refused, SubmitScript, UpgradeScript
from penstock.runtime.system.children import child_command

#: The largest number of files of a program, and their largest size together, in bytes.
MAX_FILES, MAX_FILE_BYTES = 10_000, 256_000_000
#: The age at which files that no job uses are removed, in seconds.
UNUSED_SECONDS = 3_600.0


async def run_script(
    command: Sequence[str], request: SubmitScript | UpgradeScript, environment: dict[str, str]
) -> str:
    """Run a job file with a command of `penstock`, in a process of its own.

    Return what the command has printed on its standard output.

    Raise `Refused` with the output of the process if it fails, for example with the traceback of
    the job file.

    Arguments:
        command: the command and its arguments up to the path of the job file.
        request: names the job file, with its options and arguments.
        environment: further variables of the environment of the process.
    """
    done = await _run(command, request, environment)
    if done.returncode:
        raise Refused(_said(done) or f"{_ended(done)}: {script_path(request)}")
    return done.stdout.decode(errors="replace").strip()


async def run_shadow_script(directory: Path, request: UpgradeScript) -> dict[str, Any]:
    """Run a job file with `penstock upgrade --shadow --json`, and return the report.

    Raise `Refused` with the output of the process if there is no report, or if programs with equal
    output could not be promoted.

    Arguments:
        directory: the state folder of the service.
        request: names the job and the job file, with its options and arguments.
    """
    command = ["upgrade", "--dir", str(directory), request.id, "--shadow", "--json"]
    done = await _run(command, request, {})
    # The job file may have printed something before. Only the report begins a line with a brace.
    printed = done.stdout.decode(errors="replace")
    try:
        report: dict[str, Any] = json.loads(printed[printed.rfind("\n{") + 1 :])
    except ValueError:
        raise Refused(_said(done) or f"{_ended(done)}: {script_path(request)}") from None
    if done.returncode and report["equal"]:
        raise Refused(done.stderr.decode(errors="replace").strip() or _ended(done))
    return report


def _said(done: subprocess.CompletedProcess[bytes]) -> str:
    said = b"\n".join(part.strip() for part in (done.stdout, done.stderr) if part.strip())
    return said.decode(errors="replace")


def _ended(done: subprocess.CompletedProcess[bytes]) -> str:
    return f"the job file has ended with the code {done.returncode}"


async def _run(
    command: Sequence[str], request: SubmitScript | UpgradeScript, environment: dict[str, str]
) -> subprocess.CompletedProcess[bytes]:
    arguments = ["--", *request.arguments] if request.arguments else []
    path = script_path(request)
    if not path.is_file():
        raise Refused(f"there is no job file {path} on the machine of the service")
    try:
        return await trio.run_process(
            child_command("penstock.__main__", *command, str(path), *request.options, *arguments),
            stdin=b"",
            capture_stdout=True,
            capture_stderr=True,
            check=False,
            cwd=request.folder or path.parent,
            env={**os.environ, **environment},
            start_new_session=True,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise Refused(f"the job file cannot be run: {error}") from error


def script_path(request: SubmitScript | UpgradeScript) -> Path:
    """Return the path of the job file of a request."""
    return (Path(request.folder or ".") / request.path).absolute()


class ProgramFiles:
    """Keeps files of programs that clients on other machines have sent.

    The files of each program are in a folder of their own. Jobs that run from such a folder import
    modules from it when they restart, so it stays as long as the service knows such a job.

    Arguments:
        folder: the folder of all these folders.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def keep(self, archive: bytes, used: Iterable[str]) -> Path:
        """Unpack a zip archive into a new folder, and return the folder.

        Folders that no job uses are removed before.

        Arguments:
            archive: the archive.
            used: the working directories of all jobs.

        Raises:
            Refused: if the archive is damaged or too large, or if the disk is full.
        """
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            self._remove_unused(used)
            target = self._folder / secrets.token_hex(8)
            target.mkdir(mode=0o700)
        except OSError as error:
            raise Refused(f"the files cannot be kept: {error}") from error
        try:
            with zipfile.ZipFile(io.BytesIO(archive)) as files:
                found = files.infolist()
                if len(found) > MAX_FILES or sum(one.file_size for one in found) > MAX_FILE_BYTES:
                    raise Refused(
                        f"the archive has more than {MAX_FILES:,} files or {MAX_FILE_BYTES:,} bytes"
                    )
                files.extractall(target)
        except BaseException as error:
            shutil.rmtree(target, ignore_errors=True)
            # Of a damaged archive, zipfile raises errors of several kinds.
            if isinstance(error, OSError):
                raise Refused(f"the files cannot be kept: {error}") from error
            if isinstance(error, Exception) and not isinstance(error, Refused):
                raise Refused(f"the body is no zip archive that can be read: {error}") from error
            raise
        return target

    def _remove_unused(self, used: Iterable[str]) -> None:
        known = {
            self._folder / Path(one).relative_to(self._folder).parts[0]
            for one in used
            if Path(one).is_relative_to(self._folder) and Path(one) != self._folder
        }
        oldest = time.time() - UNUSED_SECONDS
        for path in self._folder.iterdir():
            if path not in known and path.stat().st_mtime < oldest:
                shutil.rmtree(path, ignore_errors=True)
