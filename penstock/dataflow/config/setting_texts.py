"""Read settings of a job that are given as text, in `penstock.toml` or in the environment.

A setting has the name of its attribute in `JobConfig`, without `_seconds`. A length of time is a
text such as `10 s`, and a size is a text such as `512 mb` or a number of bytes.
"""

from __future__ import annotations

import re
from dataclasses import fields
from difflib import get_close_matches
from enum import Enum
from functools import cache
from typing import get_args, get_type_hints

from penstock.dataflow.arguments.durations import milliseconds_of_text
from penstock.dataflow.config.checks import log_level_number
from penstock.dataflow.config.flink_keys import size_of_text
from penstock.dataflow.config.job_config import JobConfig
from penstock.dataflow.config.restart_strategies import RestartStrategies, RestartStrategy
from penstock.dataflow.type_variables import UserFunction, UserValue

_SIZES = ("batch_bytes", "inline_threshold", "memory_bytes")
_HAS_UNIT = re.compile(r".*[a-z]\s*", re.IGNORECASE)

#: For each kind of restart strategy its function, and the arguments by their names in texts.
_RESTARTS: dict[str, tuple[UserFunction[RestartStrategy], dict[str, str]]] = {
    "none": (RestartStrategies.no_restart, {}),
    "fixed-delay": (
        RestartStrategies.fixed_delay_restart,
        {"attempts": "restart_attempts", "delay": "delay_between_attempts"},
    ),
    "failure-rate": (
        RestartStrategies.failure_rate_restart,
        {
            "max-failures": "max_failures_per_interval",
            "interval": "failure_interval",
            "delay": "delay",
        },
    ),
    "exponential-delay": (
        RestartStrategies.exponential_delay_restart,
        {
            "initial": "initial_backoff",
            "max": "max_backoff",
            "multiplier": "backoff_multiplier",
            "reset": "reset_backoff_threshold",
            "attempts": "attempts",
        },
    ),
}
_NEEDED = {"fixed-delay": ("attempts", "delay"), "failure-rate": ("max-failures", "interval")}


@cache
def setting_names() -> dict[str, str]:
    """Return the attribute of `JobConfig` for the name of each setting."""
    names = [field.name for field in fields(JobConfig)]
    return {name.removesuffix("_seconds"): name for name in names}


def attribute_of(name: str) -> str | None:
    """Return the attribute of a setting, or None if there is no setting of this name."""
    return setting_names().get(name.replace("-", "_"))


def suggestion(name: str, cutoff: float = 0.6) -> str | None:
    """Return the name of the setting that is most like a name; None if none is like it."""
    close = get_close_matches(name.replace("-", "_").lower(), setting_names(), 1, cutoff)
    return close[0] if close else None


def setting_value(attribute: str, value: UserValue) -> object:
    """Return the value of a setting.

    Arguments:
        attribute: the attribute of `JobConfig`.
        value: a text; or a value of TOML, such as a number.

    Raises:
        ValueError: if the value cannot be read. The message describes the correct form.
    """
    if attribute.endswith("_seconds"):
        if not isinstance(value, str) or not _HAS_UNIT.fullmatch(value):
            raise ValueError("it is a length of time with its unit, such as 500 ms, 10 s or 5 min")
        return milliseconds_of_text(value.strip()) / 1000
    if attribute in _SIZES:
        return size_of_text(str(value).strip())
    if attribute == "restart":
        return _restart_strategy(str(value))
    if attribute == "log_level":
        return log_level_number(value)
    hint = get_type_hints(JobConfig)[attribute]
    kinds = [kind for kind in get_args(hint) or (hint,) if kind is not type(None)]
    return _value(kinds[0], value)


def _value(kind: type, value: UserValue) -> UserValue:
    if kind is bool:
        texts = {"true": True, "on": True, "1": True, "false": False, "off": False, "0": False}
        if str(value).lower() not in texts:
            raise ValueError("it is true or false")
        return texts[str(value).lower()]
    if kind is int:
        if isinstance(value, bool) or not re.fullmatch(r"\d+", str(value).strip()):
            raise ValueError("it is a whole number")
        return int(value)
    if kind is float:
        if isinstance(value, bool) or not re.fullmatch(r"\d+(\.\d+)?", str(value).strip()):
            raise ValueError("it is a number")
        return float(value)
    if isinstance(kind, type) and issubclass(kind, Enum):
        names = {name.lower(): member for name, member in kind.__members__.items()}
        if str(value).lower().replace("-", "_") not in names:
            raise ValueError(f"it is one of {', '.join(member.name.lower() for member in kind)}")
        return names[str(value).lower().replace("-", "_")]
    if not isinstance(value, str):
        raise ValueError("it is a text")
    return value


def _restart_strategy(text: str) -> RestartStrategy:
    """Return the strategy of a text such as `fixed-delay, attempts=3, delay=1 s`."""
    kind, *options = (part.strip() for part in text.split(","))
    kind = kind.replace("_", "-").lower()
    if kind not in _RESTARTS:
        raise ValueError(f"it is one of {', '.join(_RESTARTS)}, with options: {_EXAMPLE}")
    function, names = _RESTARTS[kind]
    arguments: dict[str, float] = {}
    for option in options:
        name, _, given = (part.strip() for part in option.partition("="))
        if name not in names or not given:
            known = ", ".join(f"{known}=" for known in names) or "no options"
            raise ValueError(f"{option!r} is no option of {kind}, which has {known}: {_EXAMPLE}")
        arguments[names[name]] = _option(name, given)
    lacking = [name for name in _NEEDED.get(kind, ()) if names[name] not in arguments]
    if lacking:
        raise ValueError(f"{kind} needs {' and '.join(f'{name}=' for name in lacking)}: {_EXAMPLE}")
    if kind == "failure-rate":
        arguments.setdefault("delay", 0)
    return function(**arguments)


_EXAMPLE = "write fixed-delay, attempts=3, delay=1 s"


def _option(name: str, text: str) -> float:
    if name in ("attempts", "max-failures"):
        return int(_value(int, text))
    return float(text) if name == "multiplier" else milliseconds_of_text(text)
