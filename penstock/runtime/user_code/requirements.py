"""Read, check and install the requirements of a job, which are those of `pip install -r`."""

from __future__ import annotations

import fcntl
import hashlib
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.dataflow.errors import GraphError, Recoverability

if TYPE_CHECKING:
    from packaging.requirements import Requirement


def read_requirements(path: Path) -> str:
    """Return the text of a requirements file, with the files that it includes by `-r`.

    Raises:
        GraphError: if the file refers to constraints, which are not sent.
        OSError: if a file cannot be read.
    """
    lines = []
    for line in path.read_text(encoding="utf-8").replace("\\\n", " ").splitlines():
        # Pip takes `-r FILE`, `-rFILE` and `--requirement=FILE`, and comments behind them.
        bare = re.sub(r"^-([rc])(?=[^\s-])", r"-\1 ", f"{line} ".partition(" #")[0].strip())
        option, _, value = bare.replace("=", " ", 1).partition(" ")
        if option in ("-r", "--requirement"):
            lines += read_requirements(path.parent / value.strip()).splitlines()
        elif option in ("-c", "--constraint"):
            raise GraphError(
                f"{path} has {line.strip()!r}, and constraints are not sent to workers: write the "
                f"versions into the requirements"
            )
        else:
            lines.append(line)
    return "\n".join(lines) + "\n"


def parse_requirements(text: str, where: str = "the requirements") -> list[Requirement]:
    """Return the requirements that a text names. Options of pip are left out.

    Raises:
        GraphError: if a line is no requirement with a name.
    """
    try:
        from packaging.requirements import InvalidRequirement, Requirement
    except ImportError as error:
        raise GraphError(f"requirements need the package packaging: {error}") from error
    found = []
    for line in text.splitlines():
        # Options of a requirement, such as --hash, follow it. A comment begins after a blank.
        wanted = f" {line}".partition(" #")[0].partition(" --")[0].strip()
        if not wanted or wanted.startswith("-"):
            continue
        try:
            found.append(Requirement(wanted))
        except InvalidRequirement:
            raise GraphError(
                f"{where} has the line {wanted!r}, which names no package: write NAME, "
                f"NAME>=VERSION or NAME @ URL"
            ) from None
    return found


def check_requirements(text: str) -> None:
    """Check that this Python has all packages of the requirements.

    Raises:
        GraphError: if it does not. The message has the name of each package that fails, the
            version that is wanted, and the one that was found.
    """
    problems = []
    for requirement in parse_requirements(text):
        if requirement.marker is not None and not requirement.marker.evaluate():
            continue
        try:
            found = importlib.metadata.version(requirement.name)
        except importlib.metadata.PackageNotFoundError:
            problems.append(f"{requirement} is not installed")
            continue
        if not requirement.specifier.contains(found, prereleases=True):
            problems.append(f"{requirement} is wanted, and version {found} is installed")
    if problems:
        raise GraphError(
            f"the Python of the workers ({sys.executable}) does not meet the requirements of the "
            f"job: {'; '.join(problems)}. Install them there, or let the job do so with "
            f"--install-requirements (the setting install_requirements)"
        )


def install_requirements(text: str, packages: Sequence[tuple[str, bytes]]) -> str:
    """Install requirements into an environment of their own, and return its `site-packages`.

    The environment is in the user's cache. It is created once for the same requirements, packages
    and Python. The call blocks, also while another process creates the same environment.

    Arguments:
        text: the requirements.
        packages: the name and the content of each file to install from. If there is none, pip uses
            its package index.

    Raises:
        GraphError: if an environment cannot be made, or if pip fails.
    """
    home = _cache() / _identity(text, packages)
    complete = home / "complete"
    with _locked(home.with_suffix(".lock")):
        if not complete.exists():
            # A process may have been killed while it created the environment.
            shutil.rmtree(home, ignore_errors=True)
            _run([sys.executable, "-m", "venv", str(home)], "make an environment")
            required = home / "requirements.txt"
            required.write_text(text, encoding="utf-8")
            command = [str(home / "bin" / "python"), "-m", "pip", "install", "-r", str(required)]
            command += ["--quiet", "--disable-pip-version-check", "--no-input"]
            if packages:
                folder = home / "packages"
                folder.mkdir()
                for name, content in packages:
                    (folder / name).write_bytes(content)
                command += ["--no-index", "--find-links", str(folder)]
            _run(command, "install the requirements of the job")
            complete.touch()
    return sysconfig.get_path("purelib", "venv", {"base": str(home), "platbase": str(home)})


def _cache() -> Path:
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    cache = root / "penstock" / "environments"
    try:
        cache.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise GraphError(
            f"there is no folder for an environment of the job: {error}; set XDG_CACHE_HOME"
        ) from error
    return cache


def _identity(text: str, packages: Sequence[tuple[str, bytes]]) -> str:
    digest = hashlib.sha256()
    python = (sys.version, sysconfig.get_platform(), sys.base_prefix)
    parts = [*map(str.encode, (*python, text)), *(part for one in packages for part in _bytes(one))]
    for part in parts:
        digest.update(len(part).to_bytes(8))
        digest.update(part)
    return digest.hexdigest()[:32]


def _bytes(package: tuple[str, bytes]) -> tuple[bytes, bytes]:
    return package[0].encode(), package[1]


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _run(command: list[str], purpose: str) -> None:
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        output = "\n".join((done.stdout + done.stderr).strip().splitlines()[-20:])
        # A package index may be out of reach for a while, so a restart may help.
        raise GraphError(
            f"a worker cannot {purpose}: {command[0]} exited with code {done.returncode}\n{output}",
            recoverability=Recoverability.ENVIRONMENT,
        )
