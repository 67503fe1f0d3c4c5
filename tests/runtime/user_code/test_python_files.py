"""Python files, archives and requirements of a job: packed, unpacked, checked and undone."""

import io
import os
import stat
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

from penstock import GraphError, JobConfig, StreamExecutionEnvironment
from penstock.runtime.user_code.python_environment import PythonEnvironment
from penstock.runtime.user_code.python_files import pack_files, unpack_archive
from penstock.runtime.user_code.requirements import (
    check_requirements,
    install_requirements,
    parse_requirements,
    read_requirements,
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a module, a folder of modules, a zip of them, and two archives of data."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sent_rules.py").write_text("LIMIT = 7\n")
    (tmp_path / "shared" / "sent_package").mkdir(parents=True)
    (tmp_path / "shared" / "sent_package" / "__init__.py").write_text("NAME = 'shared'\n")
    with zipfile.ZipFile("zipped.zip", "w") as archive:
        archive.writestr("sent_zipped.py", "from pathlib import Path\nHERE = Path(__file__)\n")
        archive.writestr("sent_data.txt", "beside")
    with zipfile.ZipFile("models.zip", "w") as archive:
        archive.writestr("words.txt", "to be")
    with tarfile.open("more.tar.gz", "w:gz") as archive:
        member = tarfile.TarInfo("run.sh")
        member.mode, content = 0o755, b"#!/bin/sh\n"
        member.size = len(content)
        archive.addfile(member, io.BytesIO(content))
    return tmp_path


def _see(_: Any) -> list[Any]:
    import sent_package
    import sent_rules
    import sent_zipped

    beside = sent_zipped.HERE.with_name("sent_data.txt").read_text()
    script = Path("more.tar.gz/run.sh")
    return [
        (sent_rules.LIMIT, sent_package.NAME, beside),
        (Path("models/words.txt").read_text(), bool(script.stat().st_mode & stat.S_IXUSR)),
    ]


def test_functions_import_files_and_find_archives_and_the_process_is_as_before(folder: Path):
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(2)
    env.add_python_file("sent_rules.py").add_python_file(folder / "shared")
    env.add_python_file("zipped.zip")
    env.add_python_archive("models.zip", "models").add_python_archive("more.tar.gz")
    before = list(sys.path), set(sys.modules)
    stream = env.from_collection([1]).rebalance().flat_map(_see)
    # A relative path of the program itself leads to the folder of the program.
    assert list(stream.execute_and_collect(in_process=True)) == [
        (7, "shared", "beside"),
        ("to be", True),
    ]
    assert (Path.cwd(), sys.path) == (folder, before[0])
    assert not {"sent_rules", "sent_package", "sent_zipped"} & set(sys.modules)


def test_a_file_that_was_changed_is_read_again_by_the_next_job(folder: Path):
    def limits() -> list[int]:
        env = StreamExecutionEnvironment.get_execution_environment()
        env.add_python_file("sent_rules.py")

        def limit(_: int) -> int:
            import sent_rules

            return sent_rules.LIMIT

        return list(env.from_collection([1]).map(limit).execute_and_collect(in_process=True))

    assert limits() == [7]
    (folder / "sent_rules.py").write_text("LIMIT = 8\n")
    assert limits() == [8]


def _config(**settings: Any) -> JobConfig:
    return JobConfig(**settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"python_files": "sent_rules.py,absent.py"}, r"Python file absent.py does not exist \[/"),
        ({"python_files": "false.zip"}, "false.zip is no zip file"),
        ({"python_archives": "absent.zip#x"}, "the archive absent.zip does not exist"),
        ({"python_archives": "sent_rules.py"}, "neither a zip nor a tar"),
        ({"python_archives": "shared"}, "is a folder: pack it, or use add_python_file"),
        ({"python_archives": "models.zip#../up"}, "cannot be unpacked to '../up'"),
        ({"python_requirements": "absent.txt"}, "requirements file absent.txt does not exist"),
        ({"python_requirements": "bad.txt"}, "bad.txt has the line './here', which names no"),
        ({"python_requirements": "limits.txt"}, "constraints are not sent"),
        ({"python_requirements": "sent_rules.py#absent"}, "folder of packages absent does not"),
    ],
)
def test_what_cannot_be_sent_is_refused(folder: Path, settings: dict[str, str], message: str):
    (folder / "false.zip").write_text("no zip")
    (folder / "bad.txt").write_text("pytest\n./here\n")
    (folder / "limits.txt").write_text("-c other.txt\n")
    (folder / "sent_rules.py").write_text("# no requirement\n")
    with pytest.raises(GraphError, match=message):
        pack_files(_config(**settings))


def test_an_archive_with_a_member_outside_of_its_folder_is_refused(tmp_path: Path):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("../outside"), io.BytesIO())
    with pytest.raises(GraphError, match="cannot be unpacked"):
        unpack_archive(buffer.getvalue(), tmp_path / "inside")
    assert not (tmp_path / "outside").exists()


def test_a_tar_file_that_ends_with_a_wheel_is_unpacked_as_a_tar_file(tmp_path: Path):
    wheel, buffer = io.BytesIO(), io.BytesIO()
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("inside.py", "")
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        member = tarfile.TarInfo("lib/a.whl")
        member.size = len(wheel.getvalue())
        archive.addfile(member, io.BytesIO(wheel.getvalue()))
    unpack_archive(buffer.getvalue(), tmp_path / "target")
    assert (tmp_path / "target" / "lib" / "a.whl").read_bytes() == wheel.getvalue()
    assert not (tmp_path / "target" / "inside.py").exists()


def test_requirements_are_read_with_the_files_that_they_include(tmp_path: Path):
    (tmp_path / "all.txt").write_text(
        "--index-url https://example.org\npytest>=8  # the runner\n-r more.txt  # shared\n"
        "-rlast.txt\n"
        "absent; python_version < '3'\nhypothesis \\\n  --hash=sha256:00\n"
    )
    (tmp_path / "more.txt").write_text("\ntrio @ https://example.org/trio.whl\n")
    (tmp_path / "last.txt").write_text("click\n")
    text = read_requirements(tmp_path / "all.txt")
    names = [requirement.name for requirement in parse_requirements(text)]
    assert names == ["pytest", "trio", "click", "absent", "hypothesis"]
    check_requirements(text)


def test_a_requirement_that_is_not_met_is_named_with_what_was_found(tmp_path: Path):
    (tmp_path / "wanted.txt").write_text("pytest>=9999\nno-such-package==1\nclick\n")
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_python_requirements(tmp_path / "wanted.txt")
    with pytest.raises(GraphError) as error:
        list(env.from_collection([1]).execute_and_collect(in_process=True))
    text = str(error.value)
    assert f"pytest>=9999 is wanted, and version {pytest.__version__} is installed" in text
    assert "no-such-package==1 is not installed" in text
    assert "click" not in text
    assert "--install-requirements" in text


def wheel(folder: Path, version: str) -> None:
    """Write a wheel of the package `sent-wheel`, whose module says its version."""
    name = f"sent_wheel-{version}"
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(folder / f"{name}-py3-none-any.whl", "w") as archive:
        archive.writestr("sent_wheel.py", f"VERSION = {version!r}\n")
        about = f"Metadata-Version: 2.1\nName: sent-wheel\nVersion: {version}\n"
        archive.writestr(f"{name}.dist-info/METADATA", about)
        kind = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        archive.writestr(f"{name}.dist-info/WHEEL", kind)
        archive.writestr(f"{name}.dist-info/RECORD", "")


def test_a_wheel_that_is_sent_meets_a_requirement(tmp_path: Path):
    wheel(tmp_path, "1.5")
    (tmp_path / "wanted.txt").write_text("sent-wheel>=1\n")
    settings = {"python_files": str(tmp_path / "sent_wheel-1.5-py3-none-any.whl")}
    packed = pack_files(_config(**settings, python_requirements=str(tmp_path / "wanted.txt")))
    PythonEnvironment.enter(packed, worker=True).leave(worker=True)


@pytest.mark.slow
def test_requirements_are_installed_once_from_the_packages_that_were_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    wheel(tmp_path / "wheels", "2.0")
    (tmp_path / "wanted.txt").write_text("sent-wheel==2.0\n")
    wanted = f"{tmp_path}/wanted.txt#{tmp_path}/wheels"
    packed = pack_files(_config(python_requirements=wanted, install_requirements=True))
    environment = PythonEnvironment.enter(packed, worker=True)
    import sent_wheel

    place = Path(sent_wheel.__file__)
    environment.leave(worker=True)
    assert place.is_relative_to(tmp_path / "cache")
    assert str(place.parent) not in sys.path
    content = (tmp_path / "wheels" / "sent_wheel-2.0-py3-none-any.whl").read_bytes()
    place.with_name("kept").touch()
    again = install_requirements(
        "sent-wheel==2.0\n", [("sent_wheel-2.0-py3-none-any.whl", content)]
    )
    assert (Path(again) / "kept").exists()
    with pytest.raises(GraphError, match=r"cannot install the requirements(.|\n)*sent-wheel==3"):
        install_requirements("sent-wheel==3.0\n", [("sent_wheel-2.0-py3-none-any.whl", content)])


def _interpreter(path: str) -> str | None:
    packed = pack_files(_config(python_executable=path))
    environment = PythonEnvironment.enter(packed, worker=False)
    try:
        return environment.interpreter()
    finally:
        environment.leave(worker=False)


def test_an_interpreter_of_another_version_is_refused(tmp_path: Path):
    assert _interpreter(sys.executable) == sys.executable
    other = tmp_path / "python"
    other.write_text('#!/bin/sh\necho \'["Python 2.7", "Penstock None"]\'\n')
    other.chmod(0o755)
    with pytest.raises(GraphError, match=r"has Python 2.7 and no Penstock, and the program has"):
        _interpreter(str(other))
    with pytest.raises(GraphError, match="does not run"):
        _interpreter(str(tmp_path / "absent"))
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_python_executable(other)
    with pytest.raises(GraphError, match="a job in this process runs on its interpreter"):
        env.from_collection([1]).print()
        env.execute(in_process=True)


def test_an_interpreter_may_be_in_an_archive(tmp_path: Path):
    with zipfile.ZipFile(tmp_path / "env.zip", "w") as archive:
        archive.writestr("bin/python", f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    config = _config(python_archives=f"{tmp_path}/env.zip#env", python_executable="env/bin/python")
    environment = PythonEnvironment.enter(pack_files(config), worker=False)
    found = environment.interpreter()
    assert found == str(environment.archives / "env/bin/python")
    assert os.access(found, os.X_OK)
    environment.leave(worker=False)
    assert not Path(found).exists()


def test_an_interpreter_of_another_user_runs(monkeypatch: pytest.MonkeyPatch):
    def refuse(*_: Any) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(Path, "chmod", refuse)
    environment = PythonEnvironment.enter(
        pack_files(_config(python_executable=sys.executable)), worker=False
    )
    assert environment.interpreter() == sys.executable
    environment.leave(worker=False)


def test_the_interpreter_of_another_environment_is_not_that_of_this_process(tmp_path: Path):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to(sys.executable)
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_python_executable(str(tmp_path / "bin" / "python"))
    env.from_collection([1]).print()
    with pytest.raises(GraphError, match="a job in this process runs on its interpreter"):
        env.execute(in_process=True)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda env: env.add_python_file("a,b.py"), "contains ','"),
        (lambda env: env.add_python_archive("a#b.zip"), "contains '#'"),
        (lambda env: env.set_python_executable(""), "takes a path, not ''"),
        (lambda env: env.set_python_requirements(7), "takes a path, not 7"),
    ],
)
def test_a_path_that_cannot_be_a_setting_is_refused(call: Any, message: str):
    with pytest.raises(GraphError, match=message):
        call(StreamExecutionEnvironment.get_execution_environment())
