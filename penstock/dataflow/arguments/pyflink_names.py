"""List the methods of PyFlink that Penstock lacks, each with advice for the user.

If a ported PyFlink program calls such a method, the error names the missing feature and its
replacement. The error is also an `AttributeError`, so `hasattr` returns False for these names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from penstock.dataflow.errors import GraphError


class MissingFeatureError(GraphError, AttributeError):
    """Raised when a program uses a feature of PyFlink that Penstock does not have."""


_TIME_WINDOW = "use window(TumblingEventTimeWindows.of(size)) or another window assigner"
_WHOLE_JOB = "is set for the whole job, by StreamExecutionEnvironment"
_NO_JVM = "Penstock runs no JVM: import Python modules in the program, from its folder or packages"

_NEEDS_KEYS = {
    **dict.fromkeys(("window", "count_window", "time_window"), "call key_by first, or window_all"),
    **dict.fromkeys(("reduce", "sum", "min", "max", "min_by", "max_by"), "call key_by first"),
    "interval_join": "call key_by first, on both streams",
}
_ANY_STREAM = {
    "time_window_all": _TIME_WINDOW.replace("window(", "window_all(", 1),
    "set_max_parallelism": f"the maximum parallelism {_WHOLE_JOB}.set_max_parallelism",
    "set_buffer_timeout": f"the buffer timeout {_WHOLE_JOB}.set_buffer_timeout",
    "set_description": "use name",
    "print_to_err": "use add_sink with a function that prints",
    "write_as_text": "use sink_to(FileSink(folder, TextLines()))",
    "set_uid_hash": "use uid, which becomes the id of the state as it is",
}

STREAM: Mapping[str, str] = _ANY_STREAM | _NEEDS_KEYS

SINK: Mapping[str, str] = {name: STREAM[name] for name in ("set_description", "set_uid_hash")}

KEYED_STREAM: Mapping[str, str] = _ANY_STREAM | {"time_window": _TIME_WINDOW}

_SAVEPOINTS = (
    "savepoints are in the checkpoint folder of the job; JobClient.trigger_savepoint takes one"
)

ENVIRONMENT: Mapping[str, str] = {
    "from_data": "use from_collection",
    "add_source": "use from_source",
    "from_elements": "use from_collection",
    "generate_sequence": "use from_sequence",
    "create_input": "use from_source",
    "read_file": "use read_text_file, or from_source with a FileSource",
    **dict.fromkeys(
        ("enable_changelog_state_backend", "is_changelog_state_backend_enabled"),
        "Penstock writes changed entries between snapshots by itself",
    ),
    "is_chaining_of_operators_with_different_max_parallelism_enabled": (
        f"the maximum parallelism {_WHOLE_JOB}.set_max_parallelism"
    ),
    "is_force_unaligned_checkpoints": "unaligned snapshots need not be forced",
    **dict.fromkeys(
        ("add_default_kryo_serializer", "register_type_with_kryo_serializer"),
        "use register_type with record classes (`penstock docs types`)",
    ),
    "set_default_savepoint_directory": _SAVEPOINTS,
    "get_default_savepoint_directory": _SAVEPOINTS,
    **dict.fromkeys(("add_jars", "add_classpaths"), _NO_JVM),
    "register_job_listener": "execute returns a JobExecutionResult, or raises the error",
    "register_cached_file": "functions read files of the machine that they run on, in open()",
}


_SERIALIZERS = "records are encoded by their Python types (`penstock docs types`); leave it out"
_TASKS = "a cancelled job ends its worker processes at once; leave it out"

EXECUTION_CONFIG: Mapping[str, str] = {
    **dict.fromkeys(
        (
            "add_default_kryo_serializer",
            "disable_auto_type_registration",
            "disable_force_avro",
            "disable_force_kryo",
            "disable_generic_types",
            "enable_force_avro",
            "enable_force_kryo",
            "enable_generic_types",
            "get_default_kryo_serializer_classes",
            "get_registered_kryo_types",
            "get_registered_pojo_types",
            "get_registered_types_with_kryo_serializer_classes",
            "has_generic_types_disabled",
            "is_auto_type_registration_disabled",
            "is_force_avro_enabled",
            "is_force_kryo_enabled",
            "register_kryo_type",
            "register_pojo_type",
            "register_type_with_kryo_serializer",
        ),
        _SERIALIZERS,
    ),
    **dict.fromkeys(
        ("disable_closure_cleaner", "enable_closure_cleaner", "is_closure_cleaner_enabled"),
        "Python functions are sent with exactly what they refer to; leave it out",
    ),
    **dict.fromkeys(
        (
            "get_task_cancellation_interval",
            "get_task_cancellation_timeout",
            "set_task_cancellation_interval",
            "set_task_cancellation_timeout",
        ),
        _TASKS,
    ),
    **dict.fromkeys(
        ("get_latency_tracking_interval", "set_latency_tracking_interval"),
        "penstock run shows the lag of each source behind its watermark",
    ),
    **dict.fromkeys(
        ("get_default_input_dependency_constraint", "set_default_input_dependency_constraint"),
        "it schedules batch jobs of Flink 1; leave it out",
    ),
    **dict.fromkeys(
        ("is_use_snapshot_compression", "set_use_snapshot_compression"),
        "Penstock chooses the compression of snapshots; leave it out",
    ),
    "set_execution_mode": "records are always passed on at once; leave it out",
    "disable_auto_generated_uids": "operators without a uid get one; set uids with .uid(...)",
}


class PyFlinkNames:
    """The base class of API classes that lack some methods of their PyFlink counterpart.

    A call of such a method raises a `MissingFeatureError`.
    """

    _missing: ClassVar[Mapping[str, str]] = {}

    # Type checkers must not see `__getattr__`: with it, they would accept every attribute.
    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            kind = type(self).__name__
            if name in self._missing:
                raise MissingFeatureError(f"{kind} has no {name!r}: {self._missing[name]}")
            raise AttributeError(f"{kind!r} object has no attribute {name!r}", name=name, obj=self)
