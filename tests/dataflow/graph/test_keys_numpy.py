"""Numpy scalars as keys: numbers, booleans and strings count as the Python value."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.dataflow.graph.keys import KeyRefusedError, canonical
from tests.dataflow.graph.test_keys import check_same_key

np = pytest.importorskip("numpy")


@pytest.mark.parametrize(
    ("key", "plain"),
    [
        (np.int64(5), 5),
        (np.uint8(255), 255),
        (np.float32(0.1), float(np.float32(0.1))),
        (np.float64(2.0), 2.0),
        (np.bool_(True), True),
        (np.str_("a"), "a"),
        (np.bytes_(b"a"), b"a"),
        (("a", np.int64(5), (np.int8(6),)), ("a", 5, (6,))),
    ],
    ids=lambda value: str(type(value)),
)
def test_a_numpy_scalar_is_the_key_that_it_is_equal_to(key: Any, plain: Any) -> None:
    check_same_key(key, plain)


@pytest.mark.parametrize(
    "key",
    [
        np.float64("nan"),
        np.datetime64("2024-01-01"),
        np.timedelta64(1, "D"),
        np.complex128(1),
        np.longdouble(1),
        np.void(b"a"),
    ],
    ids=repr,
)
def test_other_numpy_scalars_are_refused(key: Any) -> None:
    with pytest.raises(KeyRefusedError):
        canonical(key)
