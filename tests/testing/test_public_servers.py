"""Each server of the tests, and each fake, can be used by users: it has a name and a page."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from pathlib import Path

import penstock.testing.connectors
import penstock.testing.servers
from penstock.testing.servers import Server, fixtures

ROOT = Path(__file__).resolve().parents[2]
GUIDE = (ROOT / "docs" / "guides" / "testing.md").read_text("utf-8")
REFERENCE = (ROOT / "docs" / "reference" / "api" / "testing.md").read_text("utf-8")


def classes_of(package) -> list[type]:
    """Return the public classes that the modules of a package define."""
    found = []
    for info in pkgutil.iter_modules(package.__path__):
        module = importlib.import_module(f"{package.__name__}.{info.name}")
        for name, defined in vars(module).items():
            own = inspect.isclass(defined) and defined.__module__ == module.__name__
            if own and not name.startswith("_"):
                found.append(defined)
    return found


SERVERS = [c for c in classes_of(penstock.testing.servers) if issubclass(c, Server)]
FAKES = [
    found
    for package in (penstock.testing.servers, penstock.testing.connectors)
    for found in classes_of(package)
    if found.__name__.startswith("Fake")
]


def test_each_server_and_each_fake_of_a_server_has_a_public_name():
    faces = penstock.testing.servers
    missing = [c.__name__ for c in SERVERS if getattr(faces, c.__name__, None) is not c]
    assert not missing and {c.__name__ for c in SERVERS} < {*faces.__all__}


def test_each_kind_of_server_has_a_fixture_that_the_guide_names():
    kinds = [c for c in SERVERS if c.__base__ is Server]
    assert len(kinds) >= 5
    source = inspect.getsource(fixtures)
    fixture_of = {
        kind: name for name, kind in re.findall(r"def (\w+_server)\([^)]*\) -> (\w+):", source)
    }
    for kind in kinds:
        fixture = fixture_of[kind.__name__]
        assert f"| `{fixture}` | `{kind.__name__}`" in GUIDE, fixture
        assert str(kind.package) in GUIDE, kind.package


def test_each_fake_is_in_the_guide_and_in_the_reference():
    assert len(FAKES) >= 5
    for fake in FAKES:
        assert f"`{fake.__name__}`" in GUIDE, fake
        assert f".{fake.__name__}\n" in f"{REFERENCE}\n", fake


def test_each_server_and_each_fake_says_what_it_does():
    for found in [*SERVERS, *FAKES]:
        assert inspect.getdoc(found), found
