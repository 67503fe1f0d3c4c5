"""The documentation site: each page can be reached, and each public name is in the reference."""

import re
from pathlib import Path

import pytest
import yaml

import penstock
import penstock.connectors.spark

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"


class _Loader(yaml.SafeLoader):
    """Reads mkdocs.yml."""


def _targets(nav: object) -> set[str]:
    if isinstance(nav, str):
        return {nav}
    if isinstance(nav, dict):
        return set().union(*map(_targets, nav.values()))
    assert isinstance(nav, list)
    return set().union(*map(_targets, nav))


def _nav() -> set[str]:
    return _targets(yaml.load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"), _Loader)["nav"])


def test_each_page_is_in_the_navigation():
    pages = {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")}
    records = {page for page in pages if re.fullmatch(r"inside/decisions/0\d\d-.*\.md", page)}
    assert pages - records <= _nav()
    assert {page for page in _nav() if (DOCS / page).exists()} == pages - records


def test_each_decision_record_is_in_their_index():
    index = (DOCS / "inside" / "decisions" / "index.md").read_text(encoding="utf-8")
    records = sorted((DOCS / "inside" / "decisions").glob("0*.md"))
    assert records
    for record in records:
        assert f"]({record.name})" in index, record.name


@pytest.mark.parametrize("package", [penstock, penstock.connectors.spark], ids=str)
def test_each_public_name_is_in_the_reference(package: object):
    reference = "".join(
        page.read_text(encoding="utf-8") for page in (DOCS / "reference" / "api").glob("*.md")
    )
    name = package.__name__  # type: ignore[attr-defined]
    for public in package.__all__:  # type: ignore[attr-defined]
        assert public.startswith("__") or f"::: {name}.{public}\n" in reference, public
