"""Check an installed wheel: its files, its modules, and the first screen of the README.

`.ci/test-wheel` runs this with the Python of an environment that has the wheel, without extras.

Usage: first_screen.py README FILES

* README is the page whose first program and commands are run.
* FILES is a file with the names of all files of the package in the repository.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
import re
import shlex
import subprocess
import sys
from pathlib import Path

import penstock

#: The packages of the extras, without which some modules cannot be imported. pytest is the user's.
EXTRAS = {
    *("pyspark", "pyarrow", "numpy", "pandas", "polars", "deltalake", "pyiceberg", "pytest"),
    *("psycopg", "redis", "confluent_kafka", "obstore", "paho", "nats", "rstream", "websockets"),
    *("urllib3", "msgspec", "fastavro", "google", "duckdb", "starlette", "anycorn"),
    *("opentelemetry", "openlineage", "attr"),
}
#: The modules that may need an extra when they are imported. All others must not.
NEED_EXTRAS = (
    *(
        f"penstock.connectors.{system}."
        for system in (
            *("columns", "formats", "http", "kafka", "lake", "mqtt", "nats", "object_store"),
            *("postgres", "rabbitmq", "redis", "spark"),
        )
    ),
    "penstock.dataflow.columns.key_index",
    "penstock.rest.",
    "penstock.runtime.operators.columns.",
    "penstock.testing.connectors.",
    "penstock.testing.fixtures",
    "penstock.testing.servers.",
)


def check_files(names: list[str]) -> None:
    """Check that the wheel has all files of the package and no others."""
    package = Path(penstock.__file__).parent
    assert package.is_relative_to(sys.prefix), f"{package} is not the wheel's"
    installed = {
        path.relative_to(package.parent).as_posix()
        for path in package.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert installed == set(names), f"differ: {sorted(installed ^ set(names))}"


def import_modules() -> int:
    """Import every module, and return the number of those that did not need an extra."""
    imported = 0
    for module in pkgutil.walk_packages(penstock.__path__, "penstock.", onerror=lambda _: None):
        if module.name == "penstock.__main__":
            continue  # it runs the command line
        try:
            importlib.import_module(module.name)
            imported += 1
        except ModuleNotFoundError as error:
            if error.name not in EXTRAS or not module.name.startswith(NEED_EXTRAS):
                raise
    for name in penstock.__all__:
        getattr(penstock, name)
    return imported


def show_pages() -> None:
    """Show a page that error messages name."""
    command = [str(Path(sys.executable).parent / "penstock"), "docs", "types"]
    assert subprocess.check_output(command, text=True).startswith("# Types")


def run_first_screen(readme: str) -> None:
    """Run the first program of the README by its first command, and check the output."""
    program = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)[0]
    Path("counts.py").write_text(program, encoding="utf-8")
    blocks = re.findall(r"```sh\n(.*?)```", readme, re.DOTALL)
    commands = [line for block in blocks for line in block.splitlines()]
    run = next(command for command in commands if command.startswith("penstock run counts.py"))
    scripts = Path(sys.executable).parent
    done = subprocess.run(
        [str(scripts / "penstock"), *shlex.split(run)[1:]], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "workers: pids" in done.stderr, done.stderr
    counting = [command for command in commands if command.startswith("cat counts/part-*")]
    assert len(counting) == 2, counting
    environment = {**os.environ, "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}"}
    lines, doubled = (
        int(subprocess.check_output(command, shell=True, env=environment)) for command in counting
    )
    assert (lines, doubled) == (100_000, 0), (lines, doubled)


def main() -> None:
    """Run all checks, and print one line."""
    readme, files = (Path(name).read_text(encoding="utf-8") for name in sys.argv[1:])
    check_files(files.split())
    imported = import_modules()
    show_pages()
    run_first_screen(readme)
    print(f"the wheel runs the README's first screen, and {imported} modules need no extra")


if __name__ == "__main__":
    main()
