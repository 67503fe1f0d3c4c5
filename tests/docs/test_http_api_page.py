"""The page of the HTTP API is the one that follows from its OpenAPI document."""

import runpy
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "reference"


def test_the_page_is_up_to_date():
    page = runpy.run_path(str(FOLDER / "write_http_api.py"))["page"]()
    hint = "run: python docs/reference/write_http_api.py"
    assert (FOLDER / "http-api.md").read_text(encoding="utf-8") == page, hint
