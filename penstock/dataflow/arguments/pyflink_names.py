"""List the methods of PyFlink that Penstock lacks, each with advice for the user.

If a ported PyFlink program calls such a method, the error names the missing feature and its
replacement. The error is also an `AttributeError`, so `hasattr` returns False for these names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from penstock.dataflow.errors import GraphError

__all__ = ["ENVIRONMENT", "KEYED_STREAM", "STREAM", "MissingFeatureError", "PyFlinkNames"]


class MissingFeatureError(GraphError, AttributeError):
    """Raised when a program uses a feature of PyFlink that Penstock does not have."""


_TIME_WINDOW = "use window(TumblingEventTimeWindows.of(size)) or another window assigner"
_WHOLE_JOB = "is set for the whole job, by StreamExecutionEnvironment"
_NO_JVM = "Penstock runs no JVM: import Python modules in the program, from its folder or packages"

STREAM: Mapping[str, str] = {
    "time_window_all": _TIME_WINDOW.replace("window(", "window_all(", 1),
    **dict.fromkeys(("window", "count_window", "time_window"), "call key_by first, or window_all"),
    **dict.fromkeys(("reduce", "sum", "min", "max", "min_by", "max_by"), "call key_by first"),
    "interval_join": "call key_by first, on both streams",
    "set_max_parallelism": f"the maximum parallelism {_WHOLE_JOB}.set_max_parallelism",
    "set_buffer_timeout": f"the buffer timeout {_WHOLE_JOB}.set_buffer_timeout",
    "slot_sharing_group": "all operators share their slots: worker i runs subtask i of each",
    "set_description": "use name",
    "print_to_err": "use add_sink with a function that prints",
    "write_as_text": "use sink_to(FileSink(folder, TextLines()))",
    "set_uid_hash": "use uid, which becomes the id of the state as it is",
}

KEYED_STREAM: Mapping[str, str] = {
    **{name: why for name, why in STREAM.items() if not why.startswith("call key_by first")},
    "time_window": _TIME_WINDOW,
}

ENVIRONMENT: Mapping[str, str] = {
    "execute_async": "execute returns when the job has ended; penstock submit runs it elsewhere",
    "from_data": "use from_collection",
    "add_source": "use from_source",
    "from_elements": "use from_collection",
    "generate_sequence": "use from_sequence",
    "create_input": "use from_source",
    "read_file": "use read_text_file, or from_source with a FileSource",
    "set_state_backend": (
        "Penstock chooses the state backend: memory while state is small, then RocksDB"
    ),
    "disable_operator_chaining": "call disable_chaining on the operators that are to be apart",
    "set_default_local_parallelism": "use set_parallelism",
    "get_default_local_parallelism": "use get_parallelism",
    "is_chaining_enabled": "operators are chained, unless disable_chaining is called on them",
    "register_slot_sharing_group": "all operators share their slots",
    "get_state_backend": "Penstock chooses the state backend",
    "enable_changelog_state_backend": "Penstock writes changed entries between snapshots by itself",
    "set_default_savepoint_directory": "penstock savepoint takes the folder of a savepoint",
    "get_default_savepoint_directory": "penstock savepoint takes the folder of a savepoint",
    "get_restart_strategy": "the strategy is an attribute of config: env.config.restart",
    **dict.fromkeys(("add_jars", "add_classpaths"), _NO_JVM),
    **dict.fromkeys(("add_python_file", "add_python_archive", "set_python_requirements"), _NO_JVM),
    "set_python_executable": "workers run in the Python of the program",
    "register_job_listener": "execute returns a JobExecutionResult, or raises the error",
    "register_cached_file": "functions read files of the machine that they run on, in open()",
}


class PyFlinkNames:
    """The base class of API classes that lack some methods of their PyFlink counterpart.

    A call of such a method raises a `MissingFeatureError`.
    """

    _missing: ClassVar[Mapping[str, str]] = {}

    # Type checkers must not see `__getattr__`: with it, they would accept every attribute.
    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            kind = type(self).__name__
            if name in self._missing:
                raise MissingFeatureError(f"{kind} has no {name!r}: {self._missing[name]}")
            raise AttributeError(f"{kind!r} object has no attribute {name!r}", name=name, obj=self)
