"""Makes trio schedule its tasks in the same order for the same seed."""

from __future__ import annotations

__all__ = ["seed_scheduler"]


def seed_scheduler(seed: int) -> None:
    """Make trio schedule its tasks in the same order for the same seed.

    This is the only place that touches trio's private random generator. `pyproject.toml` bounds
    the version of trio for it, and `test_simulation.py` shows that it works.
    """
    from trio._core import _run

    _run._r.seed(seed)
    _run._ALLOW_DETERMINISTIC_SCHEDULING = True  # type: ignore[misc]
