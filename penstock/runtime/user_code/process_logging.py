"""Apply the logging configuration of a program in the processes of its job.

A worker does not run the job file, so a `logging.basicConfig` in the file has no effect on the
worker. Therefore the client sends the levels and the format. Each process of the job installs a
handler on standard error with them, unless an imported module has configured the root logger.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Self

from penstock.runtime.user_code.current_operator import operator_at_work

#: The environment variable with the log level of jobs whose program sets none. The job service
#: sets the variable for its jobs.
LEVEL_VARIABLE = "PENSTOCK_LOG_LEVEL"

_LINE = "%(asctime)s %(levelname)-5s %(name)s [%(penstock_place)s]: %(message)s"
_STYLES = {logging.PercentStyle: "%", logging.StrFormatStyle: "{", logging.StringTemplateStyle: "$"}


@dataclass(frozen=True)
class LoggingConfig:
    """The part of a program's logging configuration that is sent to its job.

    Arguments:
        level: the level of the root logger; None if the program has not configured it.
        explicit: whether `level` was set for the job, and overrides the root level that an imported
            module sets.
        levels: the levels of other loggers, keyed by name.
        handler_level: the level of the handler.
        format, datefmt, style, defaults: the arguments of `logging.Formatter`. A format of None
            means the format of Penstock.
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
        """Return the formatter of the log lines."""
        if self.format is None:
            return logging.Formatter(_LINE, self.datefmt)
        style: Any = self.style
        return logging.Formatter(self.format, self.datefmt, style, defaults=self.defaults)


def program_logging(level: int | None) -> LoggingConfig:
    """Return the logging configuration of this process, to be sent to its job.

    Arguments:
        level: the level of the root logger in the job; None keeps the level that it has here.
    """
    root = logging.root
    # The list is a copy: a thread of the program may add a logger during the iteration.
    loggers = list(root.manager.loggerDict.items())
    levels = {
        name: logger.level
        for name, logger in loggers
        if isinstance(logger, logging.Logger) and logger.level != logging.NOTSET
    }
    configured = bool(root.handlers) or root.level != logging.WARNING
    config = LoggingConfig(root.level if configured else None, levels=levels)
    streams = [each for each in root.handlers if isinstance(each, logging.StreamHandler)]
    # Prefer a handler that writes to the terminal to a handler that writes to a file.
    streams.sort(key=lambda each: isinstance(each, logging.FileHandler))
    if streams:
        config = replace(config, handler_level=streams[0].level, **_format_of(streams[0]))
    if level is not None:
        config = replace(config, level=level, explicit=True, handler_level=logging.NOTSET)
    return config


def _format_of(handler: logging.Handler) -> dict[str, Any]:
    """Return the format of a handler as fields of a `LoggingConfig`.

    Return no fields if the handler has no format of its own, or one that cannot be sent.
    """
    formatter = handler.formatter
    # The code of a subclass cannot be sent. The default format of `basicConfig` is not sent,
    # because the program did not choose it.
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
        return {}  # the format uses attributes that only a filter of the program sets
    return shipped


class _Place(logging.Filter):
    """Sets attributes of log records: the operator, the subtask and the process.

    Arguments:
        process: the name of the process, used while no operator runs.
        subtask: the value of the attribute `subtask` while no operator runs.
    """

    def __init__(self, process: str, subtask: int | str) -> None:
        super().__init__()
        self._process, self._subtask = process, subtask

    def filter(self, record: logging.LogRecord) -> bool:
        """Set the attributes of a record, unless the caller has passed them in `extra`."""
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
    """Adds a job's attributes to the log records of this process's handlers.

    It is a context manager, and restores the previous state at its end. It installs no handler,
    since it is for a process that does not belong to the job alone.
    """

    def __init__(self, process: str = "-", subtask: int | str = "-") -> None:
        self._place = _Place(process, subtask)
        self._adopted: list[logging.Handler] = []
        #: The loggers whose levels were changed, each with its previous level.
        self._levels: list[tuple[logging.Logger, int]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for handler in self._adopted:
            handler.removeFilter(self._place)
        for logger, level in reversed(self._levels):
            logger.setLevel(level)

    def configure(self, config: LoggingConfig) -> None:
        """Apply the level that was set for the job, and adopt all existing handlers."""
        if config.explicit and config.level is not None:
            self._set_level(logging.root, config.level)
        self.adopt()

    def adopt(self) -> None:
        """Add the attributes to the records of all handlers that exist now."""
        for handler in _handlers():
            if self._place not in handler.filters:
                handler.addFilter(self._place)
                self._adopted.append(handler)

    def _set_level(self, logger: logging.Logger, level: int) -> None:
        self._levels.append((logger, logger.level))
        logger.setLevel(level)


class ProcessLogging(LogAttributes):
    """Configures the logging of a process of one job, as a context manager.

    Arguments:
        process: the name of the process, such as "worker 1".
        subtask: the index of the subtask whose operators run in the process.
    """

    def __init__(self, process: str, subtask: int | str = "-") -> None:
        super().__init__(process, subtask)
        self._handler: logging.Handler | None = None

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        if self._handler is not None:
            logging.root.removeHandler(self._handler)

    def configure(self, config: LoggingConfig) -> None:
        """Install the handler and set the levels, unless the root logger has a handler."""
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
    """Return a log line in the default format of the processes of a job."""
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
