"""Pack a job file and what it needs, for a service on another machine: `ProgramArchive`."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from penstock.cli.options import JobOptions
from penstock.dataflow.arguments.paths import without_scheme
from penstock.dataflow.errors import GraphError

#: The largest size of an archive, in bytes; the service takes no larger one.
MAX_ARCHIVE = 64_000_000
#: Folders that hold no source files.
_LEFT_OUT = ("__pycache__", "node_modules")


class ProgramArchive:
    """The files of a program: the job file, the modules beside it, and those of `--py-files`.

    The folder `job` of the archive has the job file, the other Python files of its folder, and the
    packages there: folders with an `__init__.py`, with all files in them. The folder `files` has
    what options name.

    Arguments:
        options: the options of the command, with the path of the job file.

    Raises:
        GraphError: if a file does not exist, or if the archive is too large.
    """

    def __init__(self, options: JobOptions) -> None:
        job = Path(options.job).absolute()
        self._data = io.BytesIO()
        #: The options that name the files as the service sees them from the folder of the job file.
        self.words: list[str] = []
        self.job = f"job/{job.name}"
        with zipfile.ZipFile(self._data, "w", zipfile.ZIP_DEFLATED) as self._zip:
            for path in _beside(job):
                self._add(path, PurePosixPath("job", path.relative_to(job.parent).as_posix()))
            for option, value in (
                ("--py-files", options.py_files),
                ("--py-archives", options.py_archives),
                ("--py-requirements", options.py_requirements),
            ):
                named = [
                    self._named(one.strip()) for one in (value or "").split(",") if one.strip()
                ]
                if named:
                    self.words += [option, ",".join(named)]

    @property
    def data(self) -> bytes:
        """The archive as bytes."""
        return self._data.getvalue()

    def _named(self, text: str) -> str:
        """Add a file or folder that an option names, and return its name for the service."""
        name, mark, folder = without_scheme(text).partition("#")
        path = Path(name).expanduser().absolute()
        if not path.exists():
            raise GraphError(f"there is no file {name} to send to the service [{path}]")
        # Two files may have the same name, so each has a folder of its own.
        place = PurePosixPath("files", str(len(self._zip.namelist())), path.name)
        files = _files_below(path) if path.is_dir() else iter((path,))
        for file in files:
            self._add(file, place / file.relative_to(path).as_posix())
        return f"../{place}{mark}{folder}"

    def _add(self, path: Path, place: PurePosixPath) -> None:
        try:
            self._zip.write(path, str(place))
        except (OSError, ValueError) as error:
            raise GraphError(f"the file {path} cannot be sent: {error}") from error
        if self._data.tell() > MAX_ARCHIVE:
            raise GraphError(
                f"the files of the program have more than {MAX_ARCHIVE:,} bytes, with {path}: put "
                f"the job file into a folder with only the modules that it needs"
            )


def _beside(job: Path) -> Iterator[Path]:
    for path in sorted(job.parent.iterdir()):
        if path.suffix == ".py" and path.is_file():
            yield path
        elif (path / "__init__.py").is_file() and path.name not in _LEFT_OUT:
            yield from _files_below(path)
    if job.suffix != ".py":
        yield job


def _files_below(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        if path.name in _LEFT_OUT or path.name.startswith("."):
            continue
        if path.is_dir():
            yield from _files_below(path)
        elif path.is_file():
            yield path
