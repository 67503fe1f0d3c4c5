"""The pictures of the documentation are what their script draws, and show rooms that exist."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "inside" / "pictures"

_spec = importlib.util.spec_from_file_location("draw", FOLDER / "draw.py")
assert _spec is not None and _spec.loader is not None
draw = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(draw)


def _rooms(folder: str) -> set[str]:
    return {path.parent.name for path in (ROOT / "penstock" / folder).glob("*/__init__.py")}


def test_the_files_are_what_the_script_draws(tmp_path: Path):
    draw.main(tmp_path)
    drawn = {path.name: path.read_text("utf-8") for path in tmp_path.iterdir()}
    assert drawn == {path.name: path.read_text("utf-8") for path in FOLDER.glob("*.svg")}


def test_the_tree_shows_rooms_that_exist():
    assert {room for floor in draw.RUNTIME for room, *_ in floor} == _rooms("runtime")
    assert set(draw.SNAPSHOT) == _rooms("snapshot")
    assert set(draw.DATAFLOW) <= _rooms("dataflow")


@pytest.mark.parametrize("name", draw.PICTURES)
def test_a_picture_has_colours_for_light_and_dark_and_a_title(name: str):
    root = ElementTree.fromstring((FOLDER / f"{name}.svg").read_text("utf-8"))
    svg = "{http://www.w3.org/2000/svg}"
    assert root.findtext(f"{svg}title")
    assert "prefers-color-scheme: dark" in (root.findtext(f"{svg}style") or "")


@pytest.mark.parametrize("name", draw.PICTURES)
def test_a_page_shows_the_picture(name: str):
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    assert any(f"pictures/{name}.svg)" in page.read_text("utf-8") for page in pages)
