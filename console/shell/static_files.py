"""The static files of the console, read into memory at the start: its own, and those of packages from npm."""

import gzip
import hashlib
import mimetypes
from pathlib import Path
from typing import NamedTuple

import falcon
from falcon.asgi import Request, Response

STATIC_DIRECTORY = Path(__file__).resolve().parent.parent / "static"
_PACKAGES = "packages"
_SUFFIXES = (".css", ".js", ".svg")


class StaticFile(NamedTuple):
    """A file's content, also compressed, its media type, and the part of its address that changes with the content."""

    content: bytes
    compressed: bytes
    media_type: str
    version: str


class StaticFiles:
    """Files by name: those in static/, and those that `python -m setup.browser_files` puts into static/packages/."""

    def __init__(self, directory: Path = STATIC_DIRECTORY) -> None:
        files = [*directory.glob("*"), *(directory / _PACKAGES).glob("*")]
        self._by_name = {file.name: _read(file) for file in sorted(files) if file.suffix in _SUFFIXES}

    def __contains__(self, name: str) -> bool:
        return name in self._by_name

    def get(self, name: str) -> StaticFile | None:
        return self._by_name.get(name)

    def url(self, name: str) -> str:
        """Return the address of a file; browsers may keep it for ever."""
        return f"/static/{name}?v={self._by_name[name].version}"


class StaticFileEndpoint:
    """Answers GET /static/NAME."""

    def __init__(self, files: StaticFiles) -> None:
        self._files = files

    async def on_get(self, request: Request, response: Response, name: str) -> None:
        file = self._files.get(name)
        if file is None:
            raise falcon.HTTPNotFound
        is_of_version = request.get_param("v") == file.version
        response.set_header("Cache-Control", f"public, max-age={'31536000, immutable' if is_of_version else '60'}")
        response.content_type = file.media_type
        response.append_header("Vary", "Accept-Encoding")
        if "gzip" in (request.get_header("Accept-Encoding") or ""):
            response.set_header("Content-Encoding", "gzip")
            response.data = file.compressed
        else:
            response.data = file.content


def _read(file: Path) -> StaticFile:
    content = file.read_bytes()
    media_type = mimetypes.guess_type(file.name)[0] or "application/octet-stream"
    return StaticFile(content, gzip.compress(content, mtime=0), media_type, hashlib.sha256(content).hexdigest()[:12])
