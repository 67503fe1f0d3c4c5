"""Define the methods of an environment that send Python files and packages to the workers."""

from __future__ import annotations

import os
from typing import Self

from penstock.dataflow.config.job_config import JobConfig
from penstock.dataflow.errors import GraphError

PathLike = str | os.PathLike[str]


class PythonDependencySettings:
    """The methods of an environment for the Python files and packages of a job.

    The files are read when the job is submitted, and travel with its code. So workers on another
    machine have them, too, and so do workers that replace failed ones. When a job is resumed, the
    files are read again.
    """

    _config: JobConfig

    def add_python_file(self, file_path: PathLike) -> Self:
        """Send a file or folder to the workers, so that functions can import it.

        (Flink: `addPythonFile`.) A Python file is importable as a module. The content of a folder,
        a zip file, a wheel or an egg is on the search path. Files that were added later are found
        first.

            env.add_python_file("rules.py")  # functions of the job may import rules

        Arguments:
            file_path: the path of the file or folder. It must not contain a comma.

        Raises:
            GraphError: if the path is empty or contains a comma. `execute` raises `GraphError` if
                the file does not exist.
        """
        path = _checked("add_python_file", file_path, ",")
        self._config.python_files = joined(path, self._config.python_files)
        return self

    def add_python_archive(self, archive_path: PathLike, target_dir: str | None = None) -> Self:
        """Send an archive to the workers, where functions find its files by relative paths.

        (Flink: `addPythonArchive`.) Each worker unpacks the archive into a folder below its
        working directory, which is then a folder of the job.

            env.add_python_archive("models.zip", "models")
            # in a function: open("models/words.txt")

        Arguments:
            archive_path: the path of a zip or tar file. It must not contain a comma or `#`.
            target_dir: the name of the folder into which the archive is unpacked. If it is None, it
                is the file name of the archive.

        Raises:
            GraphError: if an argument is empty or has one of these characters. `execute` raises
                `GraphError` if the file does not exist or is no archive.
        """
        text = _checked("add_python_archive", archive_path, ",#")
        if target_dir is not None:
            text += f"#{_checked('add_python_archive', target_dir, ',#')}"
        self._config.python_archives = joined(self._config.python_archives, text)
        return self

    def set_python_requirements(
        self, requirements_file_path: PathLike, requirements_cache_dir: PathLike | None = None
    ) -> Self:
        """Set the packages that the workers must have.

        (Flink: `setPythonRequirements`.) Each worker checks that the packages are installed in the
        required versions. With the setting `install_requirements`, it installs them with pip into
        an environment of the job, which is kept for later jobs with the same requirements.

            env.set_python_requirements("requirements.txt")

        Arguments:
            requirements_file_path: a file in the format of `pip install -r`.
            requirements_cache_dir: a folder with the packages, which are sent to the workers. pip
                then uses no package index.

        Raises:
            GraphError: if a path is empty or contains `#`. `execute` raises `GraphError` if a file
                does not exist, or if a worker does not meet a requirement.
        """
        text = _checked("set_python_requirements", requirements_file_path, "#")
        if requirements_cache_dir is not None:
            text += f"#{_checked('set_python_requirements', requirements_cache_dir, '#')}"
        self._config.python_requirements = text
        return self

    def set_python_executable(self, python_exec: PathLike) -> Self:
        """Set the Python interpreter that runs the workers.

        (Flink: `setPythonExecutable`.) It must be the same version of Python as that of the
        program, and must have the same version of Penstock.

            env.set_python_executable("/opt/scoring/bin/python")

        Arguments:
            python_exec: the path of the interpreter, or its name on the `PATH`. A relative path may
                lead into an archive of `add_python_archive`.

        Raises:
            GraphError: if the path is empty. `execute` raises `GraphError` if the interpreter does
                not run, or if a version differs.
        """
        self._config.python_executable = _checked("set_python_executable", python_exec, "")
        return self


def joined(*lists: str | None) -> str:
    """Return comma-separated lists as one list."""
    return ",".join(text for text in lists if text)


def _checked(method: str, value: object, forbidden: str) -> str:
    """Return a path or a name as text. Raise `GraphError` if it cannot be part of a setting."""
    if not isinstance(value, str | os.PathLike):
        raise GraphError(f"{method} takes a path, not {value!r}")
    text = os.fspath(value)
    if not isinstance(text, str) or not text:
        raise GraphError(f"{method} takes a path, not {value!r}")
    for character in forbidden:
        if character in text:
            raise GraphError(f"{method}: {text!r} contains {character!r}; rename it")
    return text
