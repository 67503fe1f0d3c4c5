"""Check a Spark session and its executors before a job starts.

Spark would find some of these problems itself, but late (by default it waits ten minutes for
slots) and in terms of its own internals. A short barrier stage of the job's size checks what the
executors have and can reach.
"""

from __future__ import annotations

import contextlib
import secrets
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import trio

from penstock.dataflow.errors import GraphError, JobError, StoreError
from penstock.snapshot.storage.filesystem.temporary_folder import TemporaryFolder
from penstock.version import VERSION

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "await_slots",
    "check_executors",
    "check_settings",
    "message_of",
    "require_spark",
    "slots_of",
]

#: The longest wait for executors: a cluster starts them only when a session has begun.
SLOTS_SECONDS = 60.0
#: The packages that a worker imports.
PACKAGES = ("msgpack", "trio", "rocksdict", "cloudpickle", "networkx")


def require_spark() -> None:
    """Raise `GraphError` if PySpark or what it needs for Arrow is not installed."""
    try:
        import pyarrow
        import pyspark
    except ImportError as error:
        raise GraphError(
            f"running on a Spark cluster needs {error.name}: pip install penstock[spark]"
        ) from error
    del pyarrow, pyspark


def check_settings(spark: SparkSession) -> None:
    """Raise `GraphError` for settings of a session under which no job can run."""
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
    """Return the number of tasks that the cluster can run at the same time now."""
    context: Any = spark.sparkContext._jsc.sc()
    profile = context.resourceProfileManager().defaultResourceProfile()
    return int(context.maxNumConcurrentTasks(profile))


async def await_slots(spark: SparkSession, needed: int) -> None:
    """Wait until the cluster has `needed` slots; the wait can be cancelled.

    Arguments:
        spark: the session.
        needed: tasks that must run at the same time.

    Raises:
        GraphError: if there are fewer after `SLOTS_SECONDS`.
    """
    deadline = trio.current_time() + SLOTS_SECONDS
    while (slots := await trio.to_thread.run_sync(slots_of, spark)) < needed:
        if trio.current_time() >= deadline:
            raise GraphError(
                f"the job needs {needed} slots, one for each worker, and after "
                f"{SLOTS_SECONDS:g} s the Spark cluster at {spark.sparkContext.master} has "
                f"{slots}: lower the parallelism, or give the session more executors or cores "
                f"(spark.executor.instances, spark.executor.cores, spark.cores.max)"
            )
        # Spark has no call that waits for them.
        await trio.sleep(0.1)


def check_executors(spark: SparkSession, slots: int, folders: Mapping[Path, str]) -> None:
    """Check that executors have a worker's packages and reach the job's folders.

    It blocks. It sends this package to executors that lack it or have another version of it.

    Arguments:
        spark: the session.
        slots: number of tasks that check.
        folders: folders that the JobManager and the workers must both see, and what each is for;
            created if missing.

    Raises:
        GraphError: if a package is missing there that cannot be sent.
        StoreError: if a folder is not the same one on the executors as here.
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
    """Put a file of a random name into each folder; yield the names by folder."""
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
    """Run the check in every slot, and return the answer of each slot."""
    import json

    frame = spark.range(0, slots, 1, slots)
    try:
        asked = frame.mapInArrow(_question(marked, PACKAGES), "answer string", barrier=True)
        rows = asked.collect()
    except Exception as error:
        raise JobError(
            f"the executors could not be asked what they have: {message_of(error)}"
        ) from error
    return [json.loads(row.answer) for row in rows]


def _question(marked: dict[str, str], packages: tuple[str, ...]) -> Callable[[Any], Any]:
    def answer(batches: Any) -> Any:
        # This is pickled by value and does its own imports: the executor may have no penstock.
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
    """Send this package to the executors, as `--py-files` would."""
    with TemporaryFolder("package") as folder:
        # Spark copies the file, so the folder may be removed.
        spark.sparkContext.addPyFile(str(zip_package(folder.path)))


def zip_package(folder: Path) -> Path:
    """Write this package as a zip file that Python can import; return its path."""
    package = Path(__file__).resolve().parents[2]
    path = folder / f"penstock-{VERSION}.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for source in sorted(package.rglob("*")):
            if source.suffix in (".py", ".typed"):
                archive.write(source, source.relative_to(package.parent))
    return path


def message_of(error: BaseException) -> str:
    """Return the message of a Spark error in at most 40 lines, without stack frames."""
    java: Any = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    text = str(error)
    if java is not None:
        with contextlib.suppress(Exception):
            text = str(java.getMessage() or java.toString())
    lines = [line.rstrip() for line in text.splitlines()]
    # The driver's own Java stack follows this line and shows nothing about the cause.
    for index, line in enumerate(lines):
        if line.startswith("Driver stacktrace"):
            del lines[index:]
            break
    kept = [line for line in lines if line and not line.lstrip().startswith("at ")]
    return "\n".join(kept[:40])
