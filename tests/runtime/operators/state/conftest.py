"""Fixtures for tests of state objects."""

from tests.snapshot.state.conftest import engine, make

__all__ = ["engine", "make"]
