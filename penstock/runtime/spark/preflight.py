"""Check a Spark session and its executors before a job starts.

Spark itself would report some of these problems, but late and in terms of its internals. For
example, it waits ten minutes for slots by default. A short barrier stage with as many tasks as the
job has workers checks the packages of the executors, and the folders that they can reach.
"""

from __future__ import annotations

import contextlib
import re
import secrets
import zipfile
from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import trio

from penstock.dataflow.errors import GraphError, JobError, StoreError
from penstock.snapshot.storage.filesystem.temporary_folder import TemporaryFolder
from penstock.version import VERSION

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: The longest time to wait for slots, in seconds. A cluster may start executors only when a session
#: has begun.
SLOTS_SECONDS = 60.0
#: The names of the third-party packages that every worker imports.
PACKAGES = ("msgpack", "trio", "cloudpickle", "networkx")


def require_spark() -> None:
    """Raise `GraphError` if PySpark or PyArrow is not installed."""
    try:
        import pyarrow
        import pyspark
    except ImportError as error:
        raise GraphError(
            f"running on a Spark cluster needs {error.name}: pip install penstock[spark]"
        ) from error
    del pyarrow, pyspark


def check_settings(spark: SparkSession) -> None:
    """Raise `GraphError` if a job cannot run with the settings of the session."""
    from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame

    if not isinstance(spark.range(0), ClassicDataFrame):
        raise GraphError(
            "a job needs the Spark driver in its own process, and this session is a Spark "
            "Connect client; make one with --master or SparkSession.builder.master(...)"
        )
    conf = spark.sparkContext.getConf()
    for key, why in (
        (
            "spark.dynamicAllocation.enabled",
            "the workers of a job need a fixed number of executors",
        ),
        ("spark.speculation", "a worker must not be started twice"),
    ):
        if str(conf.get(key, "false")).lower() == "true":
            raise GraphError(
                f"{key} is on, and {why}: set it to false (--conf {key}=false), and ask for "
                f"enough executors"
            )


def slots_of(spark: SparkSession) -> int:
    """Return the number of slots: the tasks that the cluster can run at the same time."""
    context: Any = spark.sparkContext._jsc.sc()
    profile = context.resourceProfileManager().defaultResourceProfile()
    return int(context.maxNumConcurrentTasks(profile))


def _promised_slots(spark: SparkSession) -> int:
    """Return the number of slots that a `local-cluster` will have when its executors run.

    Return 0 for other masters, which do not say how many executors they will start.
    """
    master = spark.sparkContext.master or ""
    local = re.fullmatch(r"local-cluster\[\s*(\d+)\s*,\s*(\d+)\s*,.*", master)
    if local is None:
        return 0
    per_task = int(spark.sparkContext.getConf().get("spark.task.cpus", "1") or 1)
    return int(local[1]) * (int(local[2]) // per_task)


async def await_slots(spark: SparkSession, needed: int) -> None:
    """Wait until the cluster has `needed` slots. The wait can be cancelled.

    Arguments:
        spark: the Spark session.
        needed: the number of tasks that must run at the same time.

    Raises:
        GraphError: if the cluster has fewer slots after `SLOTS_SECONDS`. If all executors run on
            this machine and will have enough slots, there is no such limit.
    """
    promised = _promised_slots(spark)
    deadline = trio.current_time() + SLOTS_SECONDS
    while (slots := await trio.to_thread.run_sync(slots_of, spark)) < needed:
        if trio.current_time() >= deadline and promised < needed:
            raise GraphError(
                f"the job needs {needed} slots, one for each worker, and after "
                f"{SLOTS_SECONDS:g} s the Spark cluster at {spark.sparkContext.master} has "
                f"{slots}: lower the parallelism, or give the session more executors or cores "
                f"(spark.executor.instances, spark.executor.cores, spark.cores.max)"
            )
        # Spark has no call that waits for slots, so their number is polled.
        await trio.sleep(0.1)


def check_executors(
    spark: SparkSession, slots: int, folders: Mapping[Path, str], python: str | None = None
) -> None:
    """Check that the executors have all packages and can use the job's folders.

    The call blocks. If executors lack Penstock or have another version, Penstock is sent to them.

    Arguments:
        spark: the Spark session.
        slots: the number of tasks that run the check, which is the number of the job's workers.
        folders: the folders that all machines must share, each with a text that says its use. A
            missing folder is created.
        python: the interpreter that the job wants for its workers; None if it does not say.

    Raises:
        GraphError: if an executor lacks a package, runs another interpreter than `python`, or still
            has another version of Penstock.
        StoreError: if a path leads to another folder on an executor than on the driver.
    """
    uses = {str(folder): use for folder, use in folders.items()}
    with _marked(list(folders)) as marked:
        answers = _ask(spark, slots, marked)
        if any(answer["version"] != VERSION for answer in answers):
            _send_package(spark)
            answers = _ask(spark, slots, marked)
        for answer in answers:
            host = answer["host"]
            if answer["missing"]:
                missing = " ".join(answer["missing"])
                raise GraphError(
                    f"the Python of the executor on {host} ({answer['python']}) lacks {missing}: "
                    f"install penstock there, send an environment (spark.archives), or name "
                    f"another Python with PYSPARK_PYTHON"
                )
            if answer["version"] != VERSION:
                raise GraphError(
                    f"the executor on {host} has penstock {answer['version']} instead of "
                    f"{VERSION} in spite of what was sent: install the same version there"
                )
            if python is not None and python not in (
                answer["python"],
                Path(answer["python"]).name,
            ):
                raise GraphError(
                    f"the executor on {host} runs {answer['python']}, and the job wants {python}: "
                    f"Spark starts its Python workers, so set PYSPARK_PYTHON={python} before the "
                    f"session starts, or use penstock run --master with --py-executable"
                )
            for folder, problem in answer["problems"].items():
                raise StoreError(
                    f"the executor on {host} cannot use the folder of {uses[folder]} as the driver "
                    f"does ({problem}): give one on a file system that all machines share, "
                    f"mounted at the same path",
                    folder,
                )
        for folder, name in marked.items():
            written = len(list(Path(folder).glob(f"{name}.*")))
            if written != len(answers):
                raise StoreError(
                    f"executors have a folder of this name of their own for {uses[folder]}: of "
                    f"{len(answers)} files that they wrote there, {written} are here; give one on "
                    f"a file system that all machines share",
                    folder,
                )


@contextlib.contextmanager
def _marked(folders: list[Path]) -> Iterator[dict[str, str]]:
    """Write a file with a random name into each folder, and remove it after the block.

    Yields the name of the file for each folder. Executors look for the files, to find out whether
    they see the same folders as the driver.
    """
    marked: dict[str, str] = {}
    try:
        for folder in folders:
            name = f".reach-{secrets.token_hex(8)}"
            try:
                folder.mkdir(parents=True, exist_ok=True)
                (folder / name).write_text(name)
            except OSError as error:
                raise StoreError(f"cannot use the folder: {error.strerror}", folder) from error
            marked[str(folder)] = name
        yield marked
    finally:
        for made, name in marked.items():
            for path in Path(made).glob(f"{name}*"):
                with contextlib.suppress(OSError):
                    path.unlink()


def _ask(spark: SparkSession, slots: int, marked: dict[str, str]) -> list[dict[str, Any]]:
    """Run the check in every slot, and return the results, one for each slot."""
    import json

    frame = spark.range(0, slots, 1, slots)
    try:
        # Without rocksdict, an executor stores state in SQLite. If only some executors have it, the
        # others cannot restore their snapshots.
        packages = PACKAGES + (("rocksdict",) if find_spec("rocksdict") else ())
        asked = frame.mapInArrow(_question(marked, packages), "answer string", barrier=True)
        rows = asked.collect()
    except Exception as error:
        raise JobError(
            f"the executors could not be asked what they have: {message_of(error)}"
        ) from error
    return [json.loads(row.answer) for row in rows]


def _question(marked: dict[str, str], packages: tuple[str, ...]) -> Callable[[Any], Any]:
    def answer(batches: Any) -> Any:
        # This function is pickled by value, and imports modules itself. So it also works on an
        # executor that does not have Penstock.
        import importlib
        import json
        import pathlib
        import sys

        import pyarrow
        from pyspark import BarrierTaskContext

        for _ in batches:
            pass
        context = BarrierTaskContext.get()
        slot = context.partitionId()
        missing: list[str] = []
        problems: dict[str, str] = {}
        version = None
        for package in packages:
            try:
                importlib.import_module(package)
            except ImportError:
                missing.append(package)
        try:
            version = importlib.import_module("penstock").__version__
        except ImportError:
            pass
        for folder, name in marked.items():
            try:
                if (pathlib.Path(folder) / name).read_text() != name:
                    problems[folder] = "it has other files"
                (pathlib.Path(folder) / f"{name}.{slot}").write_text(name)
            except OSError as error:
                problems[folder] = str(error.strerror)
        text = json.dumps(
            {
                "host": context.getTaskInfos()[slot].address.rpartition(":")[0],
                "python": sys.executable,
                "missing": missing,
                "problems": problems,
                "version": version,
            }
        )
        yield pyarrow.RecordBatch.from_pydict({"answer": [text]})

    return answer


def _send_package(spark: SparkSession) -> None:
    """Send Penstock to the executors, as `spark-submit --py-files` does."""
    with TemporaryFolder("package") as folder:
        # `addPyFile` copies the file, so the folder may be removed afterwards.
        spark.sparkContext.addPyFile(str(zip_package(folder.path)))


def zip_package(folder: Path) -> Path:
    """Write Penstock to a zip file that Python can import, and return the file's path.

    Arguments:
        folder: the folder in which the file is created.
    """
    package = Path(__file__).resolve().parents[2]
    path = folder / f"penstock-{VERSION}.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for source in sorted(package.rglob("*")):
            if source.suffix in (".py", ".typed"):
                archive.write(source, source.relative_to(package.parent))
    return path


def message_of(error: BaseException) -> str:
    """Return the first 40 lines of a Spark error's message, without stack frames."""
    java: Any = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    text = str(error)
    if java is not None:
        with contextlib.suppress(Exception):
            text = str(java.getMessage() or java.toString())
    lines = [line.rstrip() for line in text.splitlines()]
    # The Java stack of the driver follows this line. It does not help to find the cause.
    for index, line in enumerate(lines):
        if line.startswith("Driver stacktrace"):
            del lines[index:]
            break
    kept = [line for line in lines if line and not line.lstrip().startswith("at ")]
    return "\n".join(kept[:40])
