"""Fixtures for tests of state objects."""

from tests.snapshot.state.conftest import make

__all__ = ["make"]
