"""Give a process of a job its Python files, packages and working directory.

A worker unpacks the files of its job into a temporary folder. Files to import are then on
`sys.path`, and the folder of the archives is the working directory. The JobManager imports modules
of the user, too, and keeps its working directory.

Several workers and a JobManager may share a process. They then share one environment, and the
process is as before when the last of them has left it.
"""

from __future__ import annotations

import importlib
import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import ClassVar

from penstock.dataflow.errors import GraphError
from penstock.runtime.control.requests import versions
from penstock.runtime.user_code.python_files import (
    IMPORTABLE,
    JobFiles,
    unpack_archive,
    unpack_files,
)
from penstock.runtime.user_code.requirements import check_requirements, install_requirements
from penstock.snapshot.storage.filesystem.temporary_folder import TemporaryFolder

#: A program that prints the versions of Python and Penstock.
_PROBE = (
    "import json, sys\n"
    "try: from penstock.version import VERSION\n"
    "except ImportError: VERSION = None\n"
    "print(json.dumps(['Python %d.%d' % sys.version_info[:2], 'Penstock %s' % VERSION]))\n"
)


class PythonEnvironment:
    """The Python files and packages of a job in this process.

    Use `enter` and `leave`.

    Arguments:
        files: the files of the job.
    """

    _lock: ClassVar[threading.Lock] = threading.Lock()
    #: The environments of this process, by the packed files.
    _entered: ClassVar[dict[bytes, PythonEnvironment]] = {}

    def __init__(self, files: JobFiles) -> None:
        self._files = files
        self._users = self._workers = 0
        self._search_path: list[str] = []
        self._packages: list[str] | None = None
        self._before = ""
        self._folder = TemporaryFolder("python")
        #: The folder into which archives are unpacked.
        self.archives = self._folder.path / "archives"
        try:
            self._unpack()
        except BaseException:
            self._folder.remove()
            raise

    @classmethod
    def enter(cls, packed: bytes, *, worker: bool, check: bool = True) -> PythonEnvironment:
        """Give this process the files of a job.

        The call blocks, for minutes if packages are installed.

        Arguments:
            packed: the files, as `pack_files` has returned them.
            worker: whether tasks will run here. If so, the folder of the job's archives becomes the
                working directory.
            check: whether to check or install the requirements. Without effect if only the workers
                have the interpreter that the job names.

        Raises:
            GraphError: if an archive cannot be unpacked, or if a requirement is not met.
        """
        with cls._lock:
            environment = cls._entered.get(packed) or cls(unpack_files(packed))
            try:
                environment._enter(worker, check)
            except BaseException:
                if not environment._users:
                    environment._folder.remove()
                raise
            cls._entered[packed] = environment
        return environment

    def _unpack(self) -> None:
        for index, (name, content) in enumerate(self._files.files):
            folder = self._folder.path / "files" / str(index)
            if name.endswith("/"):
                folder /= name
                unpack_archive(content, folder)
            elif name.endswith(IMPORTABLE):
                unpack_archive(content, folder)
            else:
                folder.mkdir(parents=True)
                (folder / name).write_bytes(content)
            self._search_path.append(str(folder))
        for target, _, content in self._files.archives:
            unpack_archive(content, self.archives / target)

    def _enter(self, worker: bool, check: bool) -> None:
        if check and (worker or self._files.executable is None):
            self._require_packages()
        if not self._users:
            sys.path[:0] = self._search_path
            importlib.invalidate_caches()
        self._users += 1
        if worker:
            if not self._workers and self._files.archives:
                self._before = os.getcwd()  # noqa: PTH109
                os.chdir(self.archives)
            self._workers += 1

    def _require_packages(self) -> None:
        required = self._files.requirements
        if required is None or self._packages is not None:
            return
        if self._files.install:
            packages = [(name, content) for name, content in self._files.packages]
            self._packages = [install_requirements(required, packages)]
            self._search_path += self._packages
            if self._users:
                sys.path[:0] = self._packages
        else:
            # Files of the job may be packages that are required.
            sys.path[:0] = self._search_path
            try:
                check_requirements(required)
            finally:
                del sys.path[: len(self._search_path)]
            self._packages = []

    def leave(self, *, worker: bool) -> None:
        """Undo `enter`, which must have been called with the same argument."""
        with self._lock:
            if worker:
                self._workers -= 1
                if not self._workers and self._before:
                    os.chdir(self._before)
                    self._before = ""
            self._users -= 1
            if self._users:
                return
            self._entered.pop(next(k for k, one in self._entered.items() if one is self))
            sys.path[:] = [path for path in sys.path if path not in self._search_path]
            # A later job in this process may send another file of the same name.
            for name, module in list(sys.modules.items()):
                file = getattr(module, "__file__", None)
                if file is not None and file.startswith(f"{self._folder.path}{os.sep}"):
                    del sys.modules[name]
            self._folder.remove()

    def interpreter(self) -> str | None:
        """Return the checked path of the interpreter for workers; None if the job names none.

        Raises:
            GraphError: if it does not run, or if its version or that of Penstock differs.
        """
        given = self._files.executable
        if given is None:
            return None
        inside = self.archives / given
        path = str(inside) if inside.is_file() else shutil.which(given) or given
        if Path(path).is_file():
            path = str(Path(path).absolute())
        try:
            if inside.is_file() and not os.access(inside, os.X_OK):
                inside.chmod(inside.stat().st_mode | 0o700)  # A zip file may have no permissions.
            done = subprocess.run(
                [path, "-P", "-c", _PROBE], capture_output=True, text=True, check=True
            )
            found = json.loads(done.stdout)
        except (OSError, subprocess.CalledProcessError, ValueError) as error:
            text = getattr(error, "stderr", None) or error
            raise GraphError(
                f"the interpreter {given} of set_python_executable does not run: {text}"
            ) from error
        if found != versions():
            raise GraphError(
                f"the interpreter {given} of set_python_executable has {' and '.join(found)}, and "
                f"the program has {' and '.join(versions())}: code can only go between equal "
                f"versions".replace("Penstock None", "no Penstock")
            )
        return path
