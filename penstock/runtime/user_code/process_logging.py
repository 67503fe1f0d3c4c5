"""The logging configuration of a program, for the processes of its job.

A worker does not run the job file, so a `logging.basicConfig` in it has no effect on the worker.
The client therefore sends the levels and the format. Each process of the job installs a handler on
standard error with them, unless an imported module has configured the root logger there.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Self

from penstock.runtime.user_code.current_operator import operator_at_work

__all__ = [
    "LEVEL_VARIABLE",
    "LogAttributes",
    "LoggingConfig",
    "ProcessLogging",
    "log_line",
    "program_logging",
]

#: The level of a job whose program names none; the job service sets it for its jobs.
LEVEL_VARIABLE = "PENSTOCK_LOG_LEVEL"

_LINE = "%(asctime)s %(levelname)-5s %(name)s [%(penstock_place)s]: %(message)s"
_STYLES = {logging.PercentStyle: "%", logging.StrFormatStyle: "{", logging.StringTemplateStyle: "$"}


@dataclass(frozen=True)
class LoggingConfig:
    """The part of a program's logging configuration that is sent to its job.

    Arguments:
        level: of the root logger; None if the program has not configured it.
        explicit: the level was given to the job, and overrides the levels that modules set.
        levels: of the other loggers that have one.
        handler_level: of the handler.
        format, datefmt, style, defaults: of the lines; a format of None is Penstock's own.
    """

    level: int | None = None
    explicit: bool = False
    levels: dict[str, int] = field(default_factory=dict)
    handler_level: int = logging.NOTSET
    format: str | None = None
    datefmt: str | None = None
    style: str = "%"
    defaults: dict[str, str | int | float] = field(default_factory=dict)

    def formatter(self) -> logging.Formatter:
        """Return the formatter of the lines."""
        if self.format is None:
            return logging.Formatter(_LINE, self.datefmt)
        style: Any = self.style
        return logging.Formatter(self.format, self.datefmt, style, defaults=self.defaults)


def program_logging(level: int | None) -> LoggingConfig:
    """Return the logging configuration of this process.

    Arguments:
        level: replaces the level of the root logger.
    """
    root = logging.root
    # As a list, since a thread of the program may add a logger meanwhile.
    loggers = list(root.manager.loggerDict.items())
    levels = {
        name: logger.level
        for name, logger in loggers
        if isinstance(logger, logging.Logger) and logger.level != logging.NOTSET
    }
    configured = bool(root.handlers) or root.level != logging.WARNING
    config = LoggingConfig(root.level if configured else None, levels=levels)
    streams = [each for each in root.handlers if isinstance(each, logging.StreamHandler)]
    # The handler of the terminal is preferred to those of files.
    streams.sort(key=lambda each: isinstance(each, logging.FileHandler))
    if streams:
        config = replace(config, handler_level=streams[0].level, **_format_of(streams[0]))
    if level is not None:
        config = replace(config, level=level, explicit=True, handler_level=logging.NOTSET)
    return config


def _format_of(handler: logging.Handler) -> dict[str, Any]:
    """Return the fields of a `LoggingConfig` for the format of a handler, if any."""
    formatter = handler.formatter
    # A subclass may do anything. The format that `basicConfig` chooses by itself is no choice.
    if type(formatter) is not logging.Formatter or formatter._fmt in (None, logging.BASIC_FORMAT):
        return {}
    style = _STYLES.get(type(formatter._style))
    if style is None:
        return {}
    found: Any = getattr(formatter._style, "_defaults", None) or {}
    defaults = {name: value for name, value in found.items() if type(value) in (str, int, float)}
    shipped: dict[str, Any] = {
        "format": formatter._fmt,
        "datefmt": formatter.datefmt,
        "style": style,
        "defaults": defaults,
    }
    try:
        LoggingConfig(**shipped).formatter().format(_record("penstock", "-", "a line"))
    except (KeyError, ValueError):
        return {}  # a filter of the program sets attributes
    return shipped


class _Place(logging.Filter):
    """Sets the attributes for the place in the job where a line was logged.

    Arguments:
        process: the name of the process, used while no operator runs.
        subtask: the value of the attribute while no operator runs.
    """

    def __init__(self, process: str, subtask: int | str) -> None:
        super().__init__()
        self._process, self._subtask = process, subtask

    def filter(self, record: logging.LogRecord) -> bool:
        """Set the attributes, except those that the caller passed with `extra`."""
        running = operator_at_work.get()
        if running is None:
            name, subtask, place = "-", self._subtask, self._process
        else:
            name, subtask = running.name, running.subtask
            place = f"operator {name!r} (subtask {subtask})"
        given = record.__dict__
        given.setdefault("operator", name)
        given.setdefault("subtask", subtask)
        given.setdefault("penstock_place", place)
        return True


class LogAttributes:
    """Adds a job's attributes to the handlers of this process; a context manager.

    It installs no handler: it is for a process that does not belong to the job alone. At the end
    of the block the previous state is restored.
    """

    def __init__(self, process: str = "-", subtask: int | str = "-") -> None:
        self._place = _Place(process, subtask)
        self._adopted: list[logging.Handler] = []
        #: The previous levels.
        self._levels: list[tuple[logging.Logger, int]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for handler in self._adopted:
            handler.removeFilter(self._place)
        for logger, level in reversed(self._levels):
            logger.setLevel(level)

    def configure(self, config: LoggingConfig) -> None:
        """Set the level that was given to the job, and adopt the handlers."""
        if config.explicit and config.level is not None:
            self._set_level(logging.root, config.level)
        self.adopt()

    def adopt(self) -> None:
        """Add the attributes to all handlers that exist now."""
        for handler in _handlers():
            if self._place not in handler.filters:
                handler.addFilter(self._place)
                self._adopted.append(handler)

    def _set_level(self, logger: logging.Logger, level: int) -> None:
        self._levels.append((logger, logger.level))
        logger.setLevel(level)


class ProcessLogging(LogAttributes):
    """Configures the logging of a process of one job; a context manager.

    Arguments:
        process: the name of the process, such as "worker 1".
        subtask: the subtask whose operators it runs.
    """

    def __init__(self, process: str, subtask: int | str = "-") -> None:
        super().__init__(process, subtask)
        self._handler: logging.Handler | None = None

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        if self._handler is not None:
            logging.root.removeHandler(self._handler)

    def configure(self, config: LoggingConfig) -> None:
        """Install the handler and the levels, unless the root logger has a handler."""
        if not logging.root.handlers:
            self._handler = logging.StreamHandler(sys.stderr)
            self._handler.setFormatter(config.formatter())
            self._handler.setLevel(config.handler_level)
            logging.root.addHandler(self._handler)
            for name, level in config.levels.items():
                logger = logging.getLogger(name)
                if logger.level == logging.NOTSET:
                    self._set_level(logger, level)
            self._set_level(
                logging.root, _default_level() if config.level is None else config.level
            )
        super().configure(config)


def log_line(level: int, logger: str, process: str, text: str) -> str:
    """Return the line that a process of a job would log."""
    return LoggingConfig().formatter().format(_record(logger, process, text, level))


def _record(logger: str, process: str, text: str, level: int = logging.INFO) -> logging.LogRecord:
    record = logging.LogRecord(logger, level, "", 0, text, None, None)
    _Place(process, "-").filter(record)
    return record


def _default_level() -> int:
    level = logging.getLevelNamesMapping().get(os.environ.get(LEVEL_VARIABLE, "").upper())
    return logging.WARNING if level is None else level


def _handlers() -> Iterator[logging.Handler]:
    loggers = [logging.root, *logging.root.manager.loggerDict.values()]
    for logger in loggers:
        if isinstance(logger, logging.Logger):
            yield from logger.handlers
