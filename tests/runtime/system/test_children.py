"""How processes of a job are started: what they find first, and what they inherit."""

import json
import subprocess
from pathlib import Path

import penstock
from penstock.runtime.system.children import child_command

_PROBE = """
import dataclasses, enum, gc, json, os, sys

collects_during_import = gc.isenabled()

def main():
    import penstock
    print(json.dumps({
        "argv": sys.argv[1:],
        "collects": [collects_during_import, gc.isenabled()],
        "dataclasses": dataclasses.__file__,
        "enum": enum.__file__,
        "package": penstock.__path__[0],
        "path": sys.path,
        "PYTHONPATH": os.environ.get("PYTHONPATH"),
    }))
"""


def test_modules_beside_the_package_do_not_hide_those_of_python(tmp_path: Path, monkeypatch):
    # As where a backport lies in site-packages, and another in the working directory.
    installed, folder = tmp_path / "site-packages", tmp_path / "work"
    installed.mkdir()
    folder.mkdir()
    (installed / "penstock").symlink_to(penstock.__path__[0])
    (installed / "probe.py").write_text(_PROBE)
    (installed / "dataclasses.py").write_text("raise SystemExit('a backport')")
    (folder / "enum.py").write_text("raise SystemExit('in the working directory')")
    monkeypatch.delenv("PYTHONPATH", raising=False)
    command = child_command("probe", "7", folder=str(installed))
    found = json.loads(subprocess.check_output(command, cwd=folder))
    assert found["argv"] == ["7"]
    assert found["collects"] == [False, True]
    assert str(tmp_path) not in found["dataclasses"] + found["enum"]
    assert found["package"] == str(installed / "penstock")
    assert found["path"][-1] == str(installed)
    assert found["PYTHONPATH"] is None


def test_a_process_has_this_very_package(tmp_path: Path, monkeypatch):
    other = tmp_path / "penstock"
    other.mkdir()
    (other / "__init__.py").write_text("raise SystemExit('another version')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    ended = subprocess.run(
        child_command("penstock.runtime.taskmanager.process"),
        input=b"",
        capture_output=True,
        cwd=tmp_path,
    )
    # It starts, and finds nothing on its input.
    assert b"another version" not in ended.stderr and b"unpack" in ended.stderr
