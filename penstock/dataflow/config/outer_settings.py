"""Settings of a job from outside of its program: `penstock.toml` and environment variables.

From the weakest to the strongest: the user's file, the file of the project, the program, the
environment variables, and the options of the command line.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from penstock.dataflow.config.job_config import JobConfig
from penstock.dataflow.config.setting_texts import (
    attribute_of,
    setting_names,
    setting_value,
    suggestion,
)
from penstock.dataflow.errors import GraphError
from penstock.dataflow.type_variables import UserValue

FILE_NAME = "penstock.toml"
#: The command that shows the list of settings.
_LIST = "`penstock docs configuration`"
#: Settings without a variable that overrides the program. `PENSTOCK_LOG_LEVEL` holds for programs
#: that set no level, and `PENSTOCK_CODEGEN=off` is read by each process.
_NO_VARIABLE = ("codegen", "log_level", "job_parameters")


def config_of_files() -> JobConfig:
    """Return the settings of `penstock.toml` in the user's folder and in the current folder.

    The user's folder is `$PENSTOCK_HOME`, by default `~/.penstock`.

    Raises:
        GraphError: if a file cannot be read, or if it has an unknown key or a wrong value.
    """
    config = JobConfig()
    home = os.environ.get("PENSTOCK_HOME") or "~/.penstock"
    for path in (Path(os.path.expanduser(home)) / FILE_NAME, Path(FILE_NAME)):  # noqa: PTH111
        if path.is_file():
            _apply(config, path)
    return config


def environment_variables() -> dict[str, str]:
    """Return the attribute of `JobConfig` that each environment variable sets."""
    names = setting_names()
    return {f"PENSTOCK_{n.upper()}": names[n] for n in names if n not in _NO_VARIABLE}


def with_environment(config: JobConfig) -> JobConfig:
    """Return the settings of a job with those of environment variables.

    For example, `PENSTOCK_PARALLELISM` sets the parallelism.

    Raises:
        GraphError: if the value of a variable cannot be read, or if a variable has nearly the name
            of a setting.
    """
    changes: dict[str, UserValue] = {}
    variables = environment_variables()
    for variable, text in os.environ.items():
        if not variable.startswith("PENSTOCK_") or not text:
            continue
        name = variable.removeprefix("PENSTOCK_").lower()
        if variable in variables:
            changes[variables[variable]] = _read(
                f"the variable {variable}", variables[variable], text
            )
        elif name in ("codegen", "log_level"):
            _read(f"the variable {variable}", name, text)  # which checks the text
        elif name not in _NO_VARIABLE:
            close = suggestion(name, cutoff=0.85)
            if close is not None and close not in _NO_VARIABLE:
                raise GraphError(
                    f"the environment has {variable}, which is no setting: did you mean "
                    f"PENSTOCK_{close.upper()}?"
                )
    return replace(config, **changes) if changes else config


def _apply(config: JobConfig, path: Path) -> None:
    try:
        with path.open("rb") as file:
            content = tomllib.load(file)
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise GraphError(f"{path} cannot be read: {error}") from None
    for key, value in content.items():
        attribute = attribute_of(key)
        if attribute is None:
            close = suggestion(key)
            hint = f"did you mean {close!r}?" if close else f"{_LIST} lists all settings"
            raise GraphError(f"{path} has the key {key!r}, which is no setting: {hint}")
        if attribute == "job_parameters":
            value = _parameters(path, value)
            config.job_parameters = {**config.job_parameters, **value}
        else:
            setattr(config, attribute, _read(f"{path}: {key}", attribute, value))


def _parameters(path: Path, value: object) -> dict[str, str]:
    if not isinstance(value, Mapping):
        raise GraphError(
            f"{path}: job_parameters is a table: write [job_parameters] above its keys"
        )
    return {str(name): str(given) for name, given in value.items()}


def _read(where: str, attribute: str, value: object) -> object:
    try:
        return setting_value(attribute, value)
    except (ValueError, GraphError) as error:
        raise GraphError(f"{where} = {value!r} cannot be read: {error}") from None
