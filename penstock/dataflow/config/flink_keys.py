"""Apply the keys of a Flink configuration to the settings of a job."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable

from penstock.dataflow.arguments.durations import milliseconds_of_text
from penstock.dataflow.config.checkpoint_retention import ExternalizedCheckpointRetention
from penstock.dataflow.config.claim_mode import RecoveryClaimMode
from penstock.dataflow.config.cold_store import ColdStoreKind
from penstock.dataflow.config.configuration import Configuration
from penstock.dataflow.config.job_config import CheckpointingMode, JobConfig
from penstock.dataflow.config.restart_scope import RestartScope
from penstock.dataflow.config.restart_strategies import RestartStrategies, RestartStrategy
from penstock.dataflow.config.runtime_mode import RuntimeExecutionMode
from penstock.dataflow.config.snapshot_stores import checkpoint_place
from penstock.dataflow.errors import GraphError
from penstock.dataflow.type_variables import T

_LOGGER = logging.getLogger("penstock")
_SIZES = {"": 1, "b": 1, "k": 2**10, "kb": 2**10, "m": 2**20, "mb": 2**20, "g": 2**30, "gb": 2**30}


def _seconds(text: str) -> float:
    return milliseconds_of_text(text) / 1000


def _boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError("it is true or false")
    return text.lower() == "true"


def _at_least(least: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        if int(text) < least:
            raise ValueError(f"it is a whole number of at least {least}")
        return int(text)

    return number


def size_of_text(text: str) -> int:
    """Return the bytes of a text such as `512 mb`. A number is in bytes.

    Raises:
        ValueError: if the text is not a size.
    """
    found = re.fullmatch(r"(\d+) *([a-z]*)", text.lower())
    if found is None or found[2] not in _SIZES:
        raise ValueError("it is a size such as 512 mb")
    return int(found[1]) * _SIZES[found[2]]


def _mode(text: str) -> CheckpointingMode:
    try:
        return CheckpointingMode[text.upper()]
    except KeyError:
        raise ValueError("it is EXACTLY_ONCE or AT_LEAST_ONCE") from None


def _runtime_mode(text: str) -> RuntimeExecutionMode:
    try:
        return RuntimeExecutionMode[text.upper()]
    except KeyError:
        raise ValueError("it is STREAMING, BATCH or AUTOMATIC") from None


def _retention(text: str) -> ExternalizedCheckpointRetention:
    try:
        return ExternalizedCheckpointRetention[text.upper()]
    except KeyError:
        kinds = ", ".join(kind.name for kind in ExternalizedCheckpointRetention)
        raise ValueError(f"it is one of {kinds}") from None


def _claim_mode(text: str) -> RecoveryClaimMode:
    try:
        return RecoveryClaimMode[text.upper().replace("-", "_")]
    except KeyError:
        raise ValueError("it is NO_CLAIM or CLAIM") from None


def _cold_store(text: str) -> ColdStoreKind:
    try:
        return ColdStoreKind(text.lower())
    except ValueError:
        raise ValueError("it is rocksdb or sqlite") from None


def _restart_scope(text: str) -> RestartScope:
    try:
        return {"full": RestartScope.JOB, "region": RestartScope.REGION}[text.lower()]
    except KeyError:
        raise ValueError("it is full or region") from None


def _scheduler(text: str) -> bool:
    try:
        return {"adaptive": True, "default": False}[text.lower()]
    except KeyError:
        raise ValueError("it is adaptive or default") from None


def _scheduler_mode(text: str) -> bool:
    if text.lower() != "reactive":
        raise ValueError("it is reactive")
    return True


#: The attribute of `JobConfig` that each key sets, and the function that reads its text.
KEYS: dict[str, tuple[str, Callable[[str], object]]] = {
    "parallelism.default": ("parallelism", _at_least(1)),
    "pipeline.max-parallelism": ("max_parallelism", _at_least(1)),
    "pipeline.name": ("name", str),
    "execution.runtime-mode": ("runtime_mode", _runtime_mode),
    "pipeline.operator-chaining": ("chaining", _boolean),
    "pipeline.operator-chaining.enabled": ("chaining", _boolean),
    "pipeline.auto-watermark-interval": ("auto_watermark_interval_seconds", _seconds),
    "execution.buffer-timeout": ("buffer_timeout_seconds", _seconds),
    "execution.buffer-timeout.interval": ("buffer_timeout_seconds", _seconds),
    "execution.checkpointing.interval": ("checkpoint_interval_seconds", _seconds),
    "execution.checkpointing.mode": ("checkpointing_mode", _mode),
    "execution.checkpointing.timeout": ("checkpoint_timeout_seconds", _seconds),
    "execution.checkpointing.min-pause": ("min_pause_seconds", _seconds),
    "execution.checkpointing.tolerable-failed-checkpoints": ("tolerable_failures", _at_least(0)),
    "execution.checkpointing.aligned-checkpoint-timeout": (
        "aligned_checkpoint_timeout_seconds",
        _seconds,
    ),
    "execution.checkpointing.externalized-checkpoint-retention": ("retention", _retention),
    "execution.checkpointing.num-retained": ("retained", _at_least(1)),
    "execution.state-recovery.claim-mode": ("claim_mode", _claim_mode),
    "execution.checkpointing.dir": ("checkpoint_dir", checkpoint_place),
    "state.checkpoints.num-retained": ("retained", _at_least(1)),
    "state.checkpoints.dir": ("checkpoint_dir", checkpoint_place),
    "state.backend.cold-store": ("cold_store", _cold_store),
    "state.storage.fs.memory-threshold": ("inline_threshold", size_of_text),
    "taskmanager.memory.managed.size": ("memory_bytes", size_of_text),
    "taskmanager.network.memory.buffer-debloat.target": (
        "buffer_debloat_target_seconds",
        _seconds,
    ),
    "jobmanager.execution.failover-strategy": ("restart_scope", _restart_scope),
    "jobmanager.scheduler": ("restart_reactive", _scheduler),
    "scheduler-mode": ("restart_reactive", _scheduler_mode),
    "jobmanager.adaptive-scheduler.resource-stabilization-timeout": (
        "restart_slot_timeout_seconds",
        _seconds,
    ),
    "jobmanager.adaptive-scheduler.submission.resource-stabilization-timeout": (
        "restart_slot_timeout_seconds",
        _seconds,
    ),
    "python.files": ("python_files", str),
    "python.archives": ("python_archives", str),
    "python.requirements": ("python_requirements", str),
    "python.executable": ("python_executable", str),
    "heartbeat.interval": ("heartbeat_seconds", _seconds),
    "heartbeat.timeout": ("heartbeat_timeout_seconds", _seconds),
}
_UNALIGNED = ("execution.checkpointing.unaligned", "execution.checkpointing.unaligned.enabled")
_RESTARTS = ("restart-strategy", "restart-strategy.type")


def apply_configuration(settings: Configuration, config: JobConfig) -> None:
    """Apply a configuration to the settings of a job.

    Keys without a meaning in Penstock are noted in the log.

    Arguments:
        settings: the configuration of the program.
        config: the settings of the job.

    Raises:
        GraphError: if the value of a key cannot be read, or is out of range.
    """
    texts = {key: text.strip() for key, text in settings.to_dict().items()}
    unknown = []
    for key, text in texts.items():
        if key in KEYS:
            attribute, read = KEYS[key]
            setattr(config, attribute, _value(key, text, read))
        elif key in _UNALIGNED:
            if _value(key, text, _boolean):
                config.checkpointing_mode = CheckpointingMode.UNALIGNED
        elif key in _RESTARTS:
            config.restart = _restart_strategy(key, texts)
        elif not key.startswith("restart-strategy."):
            unknown.append(key)
    if unknown:
        _LOGGER.info("these keys of the configuration mean nothing here: %s", ", ".join(unknown))


def _value(key: str, text: str, read: Callable[[str], T]) -> T:
    try:
        return read(text)
    except ValueError as error:
        raise GraphError(f"the configuration has {key}: {text}, which cannot be: {error}") from None


def _restart_strategy(key: str, texts: dict[str, str]) -> RestartStrategy:
    """Return the restart strategy that a configuration describes."""
    kind = texts[key].lower().replace("-", "").replace("_", "")

    def duration(name: str, default: float) -> float:
        full = f"restart-strategy.{name}"
        return float(_value(full, texts[full], milliseconds_of_text)) if full in texts else default

    def number(name: str, default: float) -> float:
        full = f"restart-strategy.{name}"
        return float(_value(full, texts[full], float)) if full in texts else default

    if kind in ("none", "off", "disable"):
        return RestartStrategies.no_restart()
    if kind == "fixeddelay":
        attempts = int(number("fixed-delay.attempts", 1))
        return RestartStrategies.fixed_delay_restart(attempts, duration("fixed-delay.delay", 1000))
    if kind == "failurerate":
        return RestartStrategies.failure_rate_restart(
            int(number("failure-rate.max-failures-per-interval", 1)),
            duration("failure-rate.failure-rate-interval", 60_000),
            duration("failure-rate.delay", 1000),
        )
    if kind == "exponentialdelay":
        return RestartStrategies.exponential_delay_restart(
            duration("exponential-delay.initial-backoff", 1000),
            duration("exponential-delay.max-backoff", 60_000),
            number("exponential-delay.backoff-multiplier", 1.5),
            duration("exponential-delay.reset-backoff-threshold", 3_600_000),
        )
    raise GraphError(
        f"the configuration has {key}: {texts[key]}, which is no restart strategy: use none, "
        f"fixed-delay, failure-rate or exponential-delay"
    )
