"""Serve the files of the page: HTML, style and modules, which a browser runs as they are."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from starlette.responses import Response

#: The folder of the files.
FOLDER = Path(__file__).parent / "page"
_MEDIA_TYPES = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
    ".txt": "text/plain",
}
#: The page loads and asks nothing but its own server, and no other page can embed it.
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    # A browser asks whether a file has changed, so that a new version of Penstock is seen at once.
    "Cache-Control": "no-cache",
}


@dataclass(frozen=True)
class _File:
    content: bytes
    media_type: str
    tag: str


class PageFiles:
    """The files of the page, in memory. No other path can be asked for."""

    def __init__(self) -> None:
        self._files: dict[str, _File] = {}
        for path in sorted(FOLDER.rglob("*")):
            if path.is_file():
                content = path.read_bytes()
                tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
                name = "/page/" + path.relative_to(FOLDER).as_posix()
                self._files[name] = _File(content, _MEDIA_TYPES[path.suffix], tag)
        self._files["/"] = self._files.pop("/page/index.html")

    def __contains__(self, path: str) -> bool:
        return path in self._files

    def response(self, path: str, headers: dict[str, str]) -> Response:
        """Return the answer to a request for a file.

        Arguments:
            path: the path of the request.
            headers: the headers of the request, with names in lower case.
        """
        file = self._files[path]
        given = {**_HEADERS, "ETag": file.tag}
        if headers.get("if-none-match") == file.tag:
            return Response(status_code=304, headers=given)
        return Response(file.content, media_type=file.media_type, headers=given)
