"""Fixtures for tests of keyed state."""

import pytest

from penstock.snapshot.state.rocksdb.database import ROCKSDB
from tests.snapshot.state.backends import Maker


@pytest.fixture
def engine():
    """The kind of database of the backends that are made. A module may have it for each kind."""
    return ROCKSDB


@pytest.fixture
def make(tmp_path, engine):
    """Makes backends in folders of their own, and closes them."""
    maker = Maker(tmp_path, engine)
    yield maker
    for backend in maker.made:
        backend.close()
