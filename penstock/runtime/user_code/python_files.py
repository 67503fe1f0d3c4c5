"""Pack the Python files of a job for its workers, and unpack them there.

The client reads all files into one value. It travels as the job's code does: from the client to
the JobManager, and from there to the workers of each attempt, wherever they run.
"""

from __future__ import annotations

import io
import os
import stat
import tarfile
import zipfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from penstock.dataflow.arguments.paths import without_scheme
from penstock.dataflow.config import JobConfig
from penstock.dataflow.errors import GraphError
from penstock.runtime.control.packing import build_from_map, pack, unpack
from penstock.runtime.user_code.requirements import parse_requirements, read_requirements

#: The endings of the archives whose content `add_python_file` puts on the search path.
IMPORTABLE = (".zip", ".whl", ".egg")


@dataclass(frozen=True)
class JobFiles:
    """The Python files of a job, and its requirements.

    Arguments:
        files: `[name, content]` for each file to import. A name that ends with `/` is that of a
            folder, whose content is a zip file.
        archives: `[target folder, name, content]` for each archive.
        requirements: the text of the requirements file; None if there is none.
        packages: `[name, content]` for each file from which the requirements are installed.
        install: whether the requirements are installed, and not only checked.
        executable: the interpreter of the workers, as the user gave it; None stands for the
            client's own.
    """

    files: list[Any] = field(default_factory=list)
    archives: list[Any] = field(default_factory=list)
    requirements: str | None = None
    packages: list[Any] = field(default_factory=list)
    install: bool = False
    executable: str | None = None


def pack_files(config: JobConfig) -> bytes:
    """Return the files that a job's settings name, as bytes; no bytes if there are none.

    Raises:
        GraphError: if a file is missing, cannot be read, or has the wrong format.
    """
    files = _split(config.python_files)
    archives = _split(config.python_archives)
    if not (files or archives or config.python_requirements or config.python_executable):
        return b""
    requirements, packages = None, []
    if config.python_requirements:
        name, _, cache = config.python_requirements.partition("#")
        path = _existing(name, "the requirements file")
        requirements = _reading(path, lambda: read_requirements(path))
        parse_requirements(requirements, str(path))
        if cache:
            folder = _existing(cache, "the folder of packages")
            packages = [[one.name, _content(one)] for one in sorted(folder.iterdir())]
    return pack(
        asdict(
            JobFiles(
                [_file(name) for name in files],
                [_archive(*name.partition("#")[::2]) for name in archives],
                requirements,
                packages,
                config.install_requirements,
                config.python_executable or None,
            )
        )
    )


def unpack_files(packed: bytes) -> JobFiles:
    """Return the files that `pack_files` has packed. Raise `ProtocolError` if malformed."""
    return build_from_map(JobFiles, unpack(packed)) if packed else JobFiles()


def unpack_archive(content: bytes, target: Path) -> None:
    """Unpack a zip or tar file into a folder, with the permissions of its files.

    Raises:
        GraphError: if the archive is damaged, or has a member outside of the folder.
    """
    target.mkdir(parents=True, exist_ok=True)
    try:
        # A tar file that ends with a zip file, such as a wheel, would also pass for a zip file.
        if not tarfile.is_tarfile(io.BytesIO(content)):
            _unzip(content, target)
        else:
            with tarfile.open(fileobj=io.BytesIO(content)) as archive:
                # Links to interpreters outside of the archive are usual in environments.
                # Python 3.11.3 and older have no filters.
                setattr(archive, "extraction_filter", getattr(tarfile, "tar_filter", None))  # noqa: B010
                archive.extractall(target)
    except (OSError, ValueError, tarfile.TarError, zipfile.BadZipFile) as error:
        raise GraphError(f"the archive for {target.name!r} cannot be unpacked: {error}") from error


def _unzip(content: bytes, target: Path) -> None:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        for member in archive.infolist():
            mode = member.external_attr >> 16
            if stat.S_ISLNK(mode):
                link = target / member.filename
                if not link.resolve().is_relative_to(target.resolve()):
                    raise ValueError(f"{member.filename} is outside of it")
                link.parent.mkdir(parents=True, exist_ok=True)
                link.symlink_to(archive.read(member).decode())
                continue
            path = archive.extract(member, target)
            if mode & 0o777 and not member.is_dir():
                os.chmod(path, mode & 0o777 | stat.S_IRUSR)  # noqa: PTH101


def _split(text: str | None) -> list[str]:
    return [part.strip() for part in (text or "").split(",") if part.strip()]


def _file(name: str) -> list[Any]:
    path = _existing(name, "the Python file")
    if path.is_dir():
        return [f"{path.resolve().name}/", _zipped(path)]
    content = _content(path)
    if path.suffix in IMPORTABLE and not zipfile.is_zipfile(io.BytesIO(content)):
        raise GraphError(f"{path} is no zip file, in spite of its name")
    return [path.name, content]


def _archive(name: str, target: str) -> list[Any]:
    path = _existing(name, "the archive")
    if path.is_dir():
        raise GraphError(f"the archive {path} is a folder: pack it, or use add_python_file")
    content = _content(path)
    is_zip = zipfile.is_zipfile(io.BytesIO(content))
    if not is_zip and not tarfile.is_tarfile(io.BytesIO(content)):
        raise GraphError(f"the archive {path} is neither a zip nor a tar file")
    target = target or path.name
    if Path(target).is_absolute() or ".." in Path(target).parts:
        raise GraphError(f"the archive {path} cannot be unpacked to {target!r}: name a folder")
    return [target, path.name, content]


def _zipped(folder: Path) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, strict_timestamps=False) as archive:
        for path in sorted(folder.rglob("*")):
            if "__pycache__" not in path.parts:
                _reading(path, lambda path=path: archive.write(path, path.relative_to(folder)))
    return buffer.getvalue()


def _existing(name: str, what: str) -> Path:
    path = Path(without_scheme(name)).expanduser()
    if not path.exists():
        raise GraphError(f"{what} {name} does not exist [{path.absolute()}]")
    return path


def _content(path: Path) -> bytes:
    content: bytes = _reading(path, path.read_bytes)
    return content


def _reading(path: Path, read: Any) -> Any:
    try:
        return read()
    except (OSError, UnicodeDecodeError) as error:
        raise GraphError(f"{path} cannot be read: {error}") from error
