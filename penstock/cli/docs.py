"""Show the pages of the documentation: `penstock docs`.

The wheel has the pages in the folder `pages` of the package. A source tree has them in `docs`. The
name of a page is that of its file, without its folder: `docs/guides/types.md` is the page "types".
"""

from __future__ import annotations

import difflib
import os
from pathlib import Path, PurePosixPath

import click

from penstock.cli.options import print_message, reporting_errors

_PACKAGE = Path(__file__).parents[1]


@click.command(short_help="Show a page of the documentation.")
@click.argument("page", required=False)
@reporting_errors
def docs(page: str | None) -> None:
    """Show a page of the documentation, such as "types", or list all pages.

    In a terminal, the page is shown in a pager. Otherwise it is written as Markdown.

    \b
    Example:
      penstock docs operations
    """
    pages = _pages()
    if page is None:
        _list(pages)
        return
    name = PurePosixPath(page.partition("#")[0]).name.removesuffix(".md")
    if name not in pages:
        close = difflib.get_close_matches(name, pages, 1)
        hint = f"did you mean {close[0]}?" if close else 'type "penstock docs" for a list of them'
        print_message(f"Error: there is no page {name}: {hint}")
        raise SystemExit(1)
    _show(pages[name].read_text(encoding="utf-8"))


def _pages() -> dict[str, Path]:
    """Return the file of each page, by its name.

    Decision records and the reference of the API lie one folder deeper, and are left out.
    """
    shipped = _PACKAGE / "pages"
    folder = shipped if shipped.is_dir() else _PACKAGE.parent / "docs"
    return {path.stem: path for path in sorted(folder.glob("*/*.md"), key=lambda path: path.stem)}


def _list(pages: dict[str, Path]) -> None:
    width = max(map(len, pages), default=0)
    for name, path in pages.items():
        title = path.read_text(encoding="utf-8").partition("\n")[0].lstrip("# ")
        click.echo(f"{name:{width}}  {title}")


def _show(text: str) -> None:
    from rich.console import Console
    from rich.markdown import Markdown

    console = Console()
    if not console.is_terminal:
        click.echo(text, nl=False)
        return
    os.environ.setdefault("LESS", "-R")  # Otherwise `less` shows the codes of colours.
    with console.pager(styles=True):
        console.print(Markdown(text), width=min(console.width, 100))
