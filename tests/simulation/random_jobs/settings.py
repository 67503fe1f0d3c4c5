"""Draws the checkpointing modes of a case, and the settings of each of its runs."""

from __future__ import annotations

import random

from penstock.dataflow.config import (
    CheckpointingMode,
    JobConfig,
    RestartStrategy,
    RuntimeExecutionMode,
)
from penstock.dataflow.config.cold_store import ColdStoreKind
from penstock.dataflow.config.restart_scope import RestartScope
from penstock.testing.simulation.simulated_job import (
    HEARTBEAT_SECONDS,
    HEARTBEAT_TIMEOUT_SECONDS,
)

__all__ = ["BATCH", "MODES", "draw_config", "draw_modes"]

#: The mode without snapshots in the middle, which emits final results only.
BATCH = "batch"
#: Each with its aligned checkpoint timeout.
MODES: dict[str, tuple[CheckpointingMode, float]] = {
    "exactly once": (CheckpointingMode.EXACTLY_ONCE, 0.0),
    "unaligned": (CheckpointingMode.UNALIGNED, 0.0),
    "unaligned after 5 ms": (CheckpointingMode.UNALIGNED, 0.005),
    "synchronous": (CheckpointingMode.SYNCHRONOUS, 0.0),
    "at least once": (CheckpointingMode.AT_LEAST_ONCE, 0.0),
    BATCH: (CheckpointingMode.NONE, 0.0),
}

#: The runtime modes of streaming, and of batch.
RUNTIME_MODES = (RuntimeExecutionMode.STREAMING, RuntimeExecutionMode.BATCH)


def draw_modes(rng: random.Random) -> list[str]:
    """Draw the modes of a case: one for all of its runs, or any of streaming mode for each."""
    streaming = [mode for mode in MODES if mode != BATCH]
    chance = rng.random()
    if chance < 0.15:
        return [BATCH]
    return streaming if chance < 0.35 else [rng.choice(streaming)]


def draw_config(
    rng: random.Random,
    mode: str,
    parallelism: int,
    folder: str,
    delay: float,
    declines: bool = False,
    loses_slots: bool = False,
) -> JobConfig:
    """Draw settings that make much happen in little time.

    Arguments:
        rng: of all choices.
        mode: one of `MODES`.
        parallelism: of the job.
        folder: the checkpoint folder.
        delay: the mean delay of messages, in seconds.
        declines: snapshots may time out.
        loses_slots: the job goes on with fewer workers if some cannot be started.
    """
    checkpointing_mode, timeout = MODES[mode]
    return JobConfig(
        name="random",
        parallelism=parallelism,
        max_parallelism=8,
        checkpoint_dir=folder,
        checkpoint_interval_seconds=rng.choice([0.02, 0.04, 0.1]),
        checkpointing_mode=checkpointing_mode,
        aligned_checkpoint_timeout_seconds=timeout,
        checkpoint_timeout_seconds=rng.choice([15 * delay, 40 * delay, 60.0]) if declines else 60.0,
        tolerable_failures=1_000_000,
        retained=rng.choice([1, 2]),
        inline_threshold=rng.choice([0, 0, 1 << 20]),
        heartbeat_seconds=HEARTBEAT_SECONDS,
        heartbeat_timeout_seconds=HEARTBEAT_TIMEOUT_SECONDS,
        restart=RestartStrategy("fixed_delay", None, 0.0),
        # The times of work are invented, so that no task is really slow.
        straggler_window_seconds=0.0,
        batch_records=rng.choice([1, 4, 64]),
        channel_batches=rng.choice([1, 2]),
        buffer_timeout_seconds=rng.choice([0.0, 0.005]),
        # A run reads the snapshots of the other database.
        cold_store=rng.choice(list(ColdStoreKind)),
        # With the smaller one, entries are evicted all the time.
        memory_bytes=rng.choice([512 << 20, 1 << 12]),
        runtime_mode=RUNTIME_MODES[mode == BATCH],
        restart_scope=rng.choice(list(RestartScope)),
        restart_reactive=loses_slots,
        restart_slot_timeout_seconds=rng.choice([0.02, 0.1]) if loses_slots else 10.0,
    )
