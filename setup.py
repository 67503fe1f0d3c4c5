"""Put the pages of `docs/` into the wheel, where the command `penstock docs` reads them.

All other settings of the build are in `pyproject.toml`.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

DOCS = Path(__file__).parent / "docs"


class BuildWithPages(build_py):
    """Builds the package, with the pages beside its modules."""

    def run(self) -> None:
        """Copy the modules and the pages. An editable install reads the pages of the tree."""
        super().run()
        if self.editable_mode:
            return
        pages = Path(self.build_lib) / "penstock" / "pages"
        for page in sorted(DOCS.glob("*/*.md")):
            folder = pages / page.parent.name
            folder.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(page, folder / page.name)


setup(cmdclass={"build_py": BuildWithPages})
