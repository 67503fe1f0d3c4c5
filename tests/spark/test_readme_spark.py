"""The program of the README that reads and writes tables is run as it stands there."""

import re
from collections import Counter
from pathlib import Path

README = Path(__file__).parents[2] / "README.md"


def test_the_tables_of_the_readme(spark, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    [program] = [
        block
        for block in re.findall(r"```python\n(.*?)```", README.read_text("utf-8"), re.DOTALL)
        if "SparkTableSource" in block
    ]
    lines = [(f"module{i % 7}", i) for i in range(1000)]
    spark.createDataFrame(lines, "module STRING, number INT").write.saveAsTable("lines")
    spark.sql("CREATE TABLE counts (module STRING, n BIGINT) USING parquet")
    exec(program, {"__name__": "__main__"})
    assert dict(spark.table("counts").collect()) == Counter(module for module, _ in lines)
