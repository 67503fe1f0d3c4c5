"""Fixtures for tests of keyed state."""

import pytest

from tests.snapshot.state.backends import Maker


@pytest.fixture
def make(tmp_path):
    """Makes backends in folders of their own, and closes them."""
    maker = Maker(tmp_path)
    yield maker
    for backend in maker.made:
        backend.close()
