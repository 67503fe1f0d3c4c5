"""The pages of the documentation come with the package, and messages name them."""

from __future__ import annotations

import re
from pathlib import Path

from click.testing import CliRunner, Result

from penstock.cli import main

ROOT = Path(__file__).parents[2]


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["docs", *arguments])


def test_a_page_is_written_as_it_is() -> None:
    page = (ROOT / "docs" / "guides" / "types.md").read_text(encoding="utf-8")
    for name in ("types", "types.md", "docs/guides/types.md", "types#keys"):
        assert run(name).output == page


def test_all_pages_are_listed_with_their_titles() -> None:
    lines = run().output.splitlines()
    assert [line.split()[0] for line in lines] == sorted(
        path.stem for path in (ROOT / "docs").glob("*/*.md")
    )
    assert ["windows", "Windows"] in [line.split(maxsplit=1) for line in lines]


def test_a_page_that_does_not_exist_has_a_suggestion() -> None:
    assert run("window").stderr == "Error: there is no page window: did you mean windows?\n"
    assert 'type "penstock docs" for a list' in run("qqq").stderr
    assert run("qqq").exit_code == 1


def test_messages_name_pages_that_exist_by_their_command() -> None:
    for path in (ROOT / "penstock").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        for page in re.findall(r"penstock docs ([a-z-]+)", text):
            assert list((ROOT / "docs").glob(f"*/{page}.md")), f"{path}: {page}"
        # Comments and docstrings name the file in backquotes, or in a sentence of their own.
        quoted = re.findall(r'"[^"\n]*\(docs/[a-z/-]+\.md[^"\n]*"', text)
        assert quoted == [], path
