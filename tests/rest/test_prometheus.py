"""The text for Prometheus, as the parser of its own client reads it."""

import math

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from penstock.rest.measurements import Measurement, MetricScope, measurements
from penstock.rest.prometheus import exposition
from penstock.runtime.control.job_state import JobState
from tests.rest.served import RUNNING, program, started, status


def read(*found):
    """Return the samples of measurements as (name, labels, value), read by the client's parser."""
    text = exposition(found).decode()
    families = list(text_string_to_metric_families(text))
    assert len({family.name for family in families}) == len(families)
    assert all(family.type == "gauge" for family in families)
    return [(one.name, one.labels, one.value) for family in families for one in family.samples]


def one(name="x", value=1, labels=None, variables=None):
    return Measurement(MetricScope.JOB, name, value, labels or {}, variables=variables)


@given(st.text(max_size=20), st.floats() | st.integers(-(2**53), 2**53), st.text(max_size=20))
def test_any_name_label_and_number_is_read_back(name, value, label):
    ((_, labels, found),) = read(one(f"m{name}", value, {"job_name": label}))
    assert labels == {"job_name": label}
    assert found == value or (math.isnan(found) and math.isnan(value))


def test_variables_are_labels_and_names_that_become_equal_are_one_family():
    found = read(
        one("a.b", 1, {"k": "1"}), one("a-b", 2, {"k": "2"}, {"topic.x": "t", "1": "u"}), one("c")
    )
    assert found == [
        ("penstock_jobmanager_job_a_b", {"k": "1"}, 1),
        ("penstock_jobmanager_job_a_b", {"k": "2", "topic_x": "t", "_1": "u"}, 2),
        ("penstock_jobmanager_job_c", {}, 1),
    ]


def test_all_metrics_of_a_job_are_there_but_those_that_are_texts():
    job = JobState("1", "words")
    for event in (started(program()), RUNNING, status(10), status(20)):
        job.handle(event)
    found = list(measurements(job))
    numbers = [one for one in found if not isinstance(one.value, str)]
    assert 0 < len(numbers) < len(found)
    samples = read(*found)
    assert len(samples) == len(numbers)
    # Each sample has the labels of its own task.
    by_name = {}
    for one_ in numbers:
        by_name.setdefault(one_.name, []).append(one_.labels.get("subtask_index"))
    for name, indexes in by_name.items():
        end = "_" + name.replace(".", "_")
        read_back = [
            labels.get("subtask_index") for found, labels, _ in samples if found.endswith(end)
        ]
        assert set(indexes) <= set(read_back), name
