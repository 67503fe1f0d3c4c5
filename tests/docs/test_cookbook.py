"""Each file of a recipe of the cookbook exists, and contains a name of the recipe's example."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "inside" / "cookbook.md").read_text(encoding="utf-8")
RECIPES = dict(re.findall(r"^## (Add .*?)\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE))


@pytest.mark.parametrize("recipe", RECIPES)
def test_each_file_of_a_recipe_has_its_example(recipe: str):
    (example,) = re.findall(r"^Example: (.*)\.$", RECIPES[recipe], re.MULTILINE)
    names = re.findall(r"`([^`]+)`", example)
    cells = re.findall(r"^\| (`.*?) \|", RECIPES[recipe], re.MULTILINE)
    files = [file for cell in cells for file in re.findall(r"`([^`]+)`", cell)]
    assert len(files) >= 5
    for file in files:
        text = (ROOT / file).read_text(encoding="utf-8")
        assert any(name in text for name in names), file


def test_there_is_a_recipe_for_each_common_change():
    for thing in (
        "operator",
        "window",
        "stream method",
        "setting",
        "connector",
        "protocol",
        "message",
    ):
        assert any(thing in recipe for recipe in RECIPES), thing
