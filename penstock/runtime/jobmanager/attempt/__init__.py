"""Run one execution attempt: its workers, splits and checkpoints, until the first failure."""
