"""Add the pages and figures of the repository that lie outside of `docs/` to the site."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[1]
#: Pages of the site that are files of the repository's root.
PAGES = {
    "index.md": "README.md",
    "changelog.md": "CHANGELOG.md",
    "contributing.md": "CONTRIBUTING.md",
}
#: Files that pages link to. They keep their path.
LINKED = ("bench/results/*.svg", "bench/results/*.md", "examples/*.py", "tests/README.md")


def on_files(files: Any, config: Any) -> Any:
    """Add `PAGES` and `LINKED` to the files of the site.

    Arguments:
        files: the files that MkDocs has found.
        config: the configuration of MkDocs.

    Returns:
        The same collection with more files.
    """
    for uri, name in PAGES.items():
        text = (ROOT / name).read_text(encoding="utf-8")
        files.append(File.generated(config, uri, content=_for_site(text)))
    for pattern in LINKED:
        for path in sorted(ROOT.glob(pattern)):
            uri = path.relative_to(ROOT).as_posix()
            if uri.endswith(".md"):
                text = _without_links(path.read_text(encoding="utf-8"))
                files.append(File.generated(config, uri, content=text))
            else:
                files.append(File.generated(config, uri, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Point links that leave `docs/` to the files that were added.

    Arguments:
        markdown: the text of a page.
        page: the page.

    Returns:
        The text with links that hold on the site.
    """
    up = "../" * page.file.src_uri.count("/")
    return markdown.replace(f"]({up}../", f"]({up}")


def _for_site(text: str) -> str:
    """Return a page of the repository's root with links that hold on the site."""
    text = text.replace("](docs/", "](").replace("](README.md", "](index.md")
    return text.replace("](CONTRIBUTING.md", "](contributing.md")


def _without_links(text: str) -> str:
    """Return a page without its links to other files, which lie elsewhere on the site."""
    return re.sub(r"(?<!!)\[([^]]+)\]\((?!http|#)[^)]+\)", r"\1", text)
