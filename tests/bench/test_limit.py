"""The limit programs and the engine's jobs beside them come to the same results."""

import json
import subprocess
import sys

import pytest

from bench.common.harness import WrongResultError
from bench.throughput import limit, limit_shapes
from tests.processes.harness import PATIENCE


def quiet(_: str) -> None:
    """Progress is for people."""


@pytest.mark.parametrize("shape", limit_shapes.SHAPES)
def test_a_limit_program_comes_to_what_must_come_out(shape) -> None:
    # More than a batch each way, so that some of it goes over the socket before the end.
    done = subprocess.run(
        [sys.executable, limit.LIMIT, shape, "40000"],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=True,
    )
    assert json.loads(done.stdout)["result"] == limit_shapes.expected(shape, 40_000)
    assert done.stderr == ""


@pytest.mark.parametrize("shape", limit.SHAPES)
def test_the_engine_is_compared_with_the_limit_of_each_shape(shape, tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(limit.RECORDS, shape, 4_000)
    figures = limit.measure([shape], 1.0, 1, 200, str(tmp_path), quiet)
    assert set(figures["ratio"]) == set(figures["cpu_ratio"]) == set(limit.LIMITS[shape])
    own = figures[shape]
    for name in limit.LIMITS[shape]:
        called = "" if name == shape else "called_"
        rate = own[f"{called}limit_records_per_second"]
        cpu = own[f"{called}limit_cpu_ns_per_record"]
        # Rounded, a ratio is 0 where the machine stood still for a second of so short a run.
        assert figures["ratio"][name] == round(own["records_per_second"] / rate, 3)
        assert figures["cpu_ratio"][name] == round(cpu / own["cpu_ns_per_record"], 3)
    assert own["records"] == 4_000
    assert own["records_per_second"] > 0 and own["cpu_ns_per_record"] > 0
    assert own["limit_records_per_second"] > 0
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_result_has_no_figures() -> None:
    limit._check("it", [1, 2], [1, 2])
    with pytest.raises(WrongResultError, match=r"it came to \[1, 2\] instead of \[1, 3\]"):
        limit._check("it", [1, 2], [1, 3])
