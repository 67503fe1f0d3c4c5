"""Running results within groups: as if the rows came one by one, to the last bit."""

import operator
import random

import numpy as np
import pytest

from penstock.runtime.operators.columns.row_groups import RowGroups


def one_by_one(combine, codes, values, initial):
    state, out = list(initial), []
    for code, value in zip(codes, values, strict=True):
        state[code] = combine(state[code], value)
        out.append(state[code])
    return out


def groups_of(rng, rows, most):
    drawn = [min(int(rng.expovariate(0.3)), most) for _ in range(rows)]
    names = list(dict.fromkeys(drawn))
    codes = [names.index(one) for one in drawn]
    return np.array(codes, np.int32), len(names)


@pytest.mark.parametrize("seed", range(30))
def test_running_results_are_those_of_rows_one_by_one(seed):
    rng = random.Random(seed)
    codes, count = groups_of(rng, rng.randrange(1, 300), rng.choice([1, 5, 40]))
    groups = RowGroups(codes, count)
    whole = np.array([rng.randrange(-100, 100) for _ in codes], np.int64)
    real = np.array([rng.uniform(-1e6, 1e6) for _ in codes])
    initial = np.array([rng.randrange(-9, 9) for _ in range(count)], np.int64)
    first = initial.astype(float)
    add = operator.add
    assert groups.running_sum(whole, initial).tolist() == one_by_one(add, codes, whole, initial)
    assert groups.running_count(initial).tolist() == one_by_one(
        add, codes, np.ones_like(whole), initial
    )
    for ufunc, combine in ((np.add, add), (np.minimum, min), (np.maximum, max)):
        got = groups.running(ufunc, real, first)
        assert got.tolist() == one_by_one(combine, codes, real, first)
        last = dict(zip(codes.tolist(), got.tolist(), strict=True))
        assert groups.last_of(got).tolist() == [last[code] for code in range(count)]


def test_a_group_of_many_rows_is_summed_in_the_order_of_its_rows():
    values = np.array([0.1] * 1000 + [1e17, 1.0, -1e17])
    codes = np.zeros(len(values), np.int32)
    got = RowGroups(codes, 1).running(np.add, values, np.array([0.0]))
    assert got.tolist() == one_by_one(operator.add, codes, values, [0.0])
