"""The first program of the page on Spark, and the examples of the classes, are run; the demo."""

import doctest
import re
from collections import Counter
from pathlib import Path

import pytest

import penstock.connectors.spark as connectors
from penstock import StreamExecutionEnvironment
from penstock.connectors.spark import SparkStreamSource, SparkTableSink, SparkTableSource

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "guides" / "spark.md"


def test_the_tables_of_the_page(spark, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    program, *_ = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    assert "SparkTableSink" in program
    lines = [(f"module{i % 7}", i) for i in range(1000)]
    spark.createDataFrame(lines, "module STRING, number INT").write.saveAsTable("lines")
    spark.sql("CREATE TABLE counts (module STRING, n BIGINT) USING parquet")
    exec(program, {"__name__": "__main__"})
    assert dict(spark.table("counts").collect()) == Counter(module for module, _ in lines)


@pytest.mark.parametrize("cls", [SparkTableSource, SparkStreamSource, SparkTableSink])
def test_the_example_of_a_class_gives_what_it_says(cls, spark, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {name: getattr(connectors, name) for name in connectors.__all__}
    names |= {"env": StreamExecutionEnvironment.get_execution_environment(), "Path": Path}
    test = doctest.DocTestParser().get_doctest(cls.__doc__, names, cls.__name__, None, None)
    assert test.examples
    report = []
    doctest.DocTestRunner().run(test, out=report.append)
    assert not report, "".join(report)


def test_the_demo_takes_no_process_id_from_a_line_that_is_half_written(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "examples")
    from demo_spark import Job

    job = Job.__new__(Job)
    job._log = tmp_path / "log"
    job._log.write_text("workers: pids 4711, 4712\nsnapshot 1\nworkers: pids 48")
    assert job.worker_pids == [[4711, 4712]]
    with job._log.open("a") as log:
        log.write("13, 4814\n")
    assert job.worker_pids == [[4711, 4712], [4813, 4814]]
