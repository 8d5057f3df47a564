"""The console's files from npm: fetched from a registry once, and only as the packages that are known."""

import base64
import hashlib
import io
import json
import tarfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from setup import browser_files
from setup.browser_files import DIRECTORY, FetchError, fetch
from testkit.repository import ROOT

TARBALL = "/a.org/-/a.org-1.2.3.tgz"


def described(url: str) -> bytes:
    """Return the package's metadata as an npm registry returns it."""
    version = {"name": "a.org", "version": "1.2.3", "dist": {"tarball": url + TARBALL}}
    return json.dumps({"name": "a.org", "dist-tags": {"latest": "1.2.3"}, "versions": {"1.2.3": version}}).encode()


class Registry:
    """An npm registry with one package; `requested` holds the paths of the requests to it."""

    def __init__(self) -> None:
        requested: list[str] = []
        about = json.dumps({"name": "a.org", "version": "1.2.3"}).encode()
        archive = self.archive = packed({"package/dist/a.min.js": b"let a;", "package/package.json": about})

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                requested.append(self.path)
                contents = {"/a.org": described(f"http://{self.headers['Host']}"), TARBALL: archive}
                self.send_response(200 if self.path in contents else 404)
                self.end_headers()
                self.wfile.write(contents.get(self.path, b""))

            def log_message(self, format: str, *arguments: object) -> None:
                pass

        self.requested = requested
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/"
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()


def packed(files: dict[str, bytes]) -> bytes:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:gz") as writing:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            writing.addfile(member, io.BytesIO(content))
    return archive.getvalue()


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Registry]:
    registry = Registry()
    monkeypatch.setenv("NPM_CONFIG_REGISTRY", registry.url)
    monkeypatch.setenv("NPM_CONFIG_CACHE", str(tmp_path / "cache"))
    yield registry
    registry.server.shutdown()
    registry.server.server_close()


SDK = ("carillon-device.js", "carillon-webpush.js")


def declare_files(root: Path, archive: bytes, version: str = "1.2.3", path: str = "dist/a.min.js") -> None:
    integrity = "sha512-" + base64.b64encode(hashlib.sha512(archive).digest()).decode()
    for folder in ("setup", "sdk"):
        (root / folder).mkdir(exist_ok=True)
    for name in SDK:
        (root / "sdk" / name).write_text("let device;")
    about = {"version": version, "integrity": integrity, "files": {path: "a.min.js"}}
    (root / "setup" / "browser_files.json").write_text(json.dumps({"a.org": about}))


def test_a_wanted_file_is_fetched_once(registry: Registry, tmp_path: Path) -> None:
    declare_files(tmp_path, registry.archive)
    fetch(tmp_path, io.StringIO())
    (tmp_path / "sdk" / "carillon-device.js").write_text("let changed;")
    fetch(tmp_path, io.StringIO())
    assert (tmp_path / DIRECTORY / "carillon-device.js").read_text() == "let changed;"
    assert (tmp_path / DIRECTORY / "a.min.js").read_bytes() == b"let a;"
    assert registry.requested.count(TARBALL) == 1


def test_what_is_not_the_known_package_is_not_used(registry: Registry, tmp_path: Path) -> None:
    declare_files(tmp_path, registry.archive + b"x")
    with pytest.raises(FetchError, match="is not the package that is wanted"):
        fetch(tmp_path, io.StringIO())
    declare_files(tmp_path, registry.archive, version="1.2.4")
    with pytest.raises(FetchError, match=r"(?s)a\.org@1\.2\.4 cannot be fetched: .*No matching version"):
        fetch(tmp_path, io.StringIO())
    declare_files(tmp_path, registry.archive, path="dist/b.js")
    with pytest.raises(FetchError, match=r"a\.org has no file dist/b\.js"):
        fetch(tmp_path, io.StringIO())
    assert {file.name for file in (tmp_path / DIRECTORY).iterdir()} == set(SDK)


def test_without_npm_the_error_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    declare_files(tmp_path, b"")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(FetchError, match="npm is not on the path"):
        fetch(tmp_path, io.StringIO())


def test_the_files_of_this_checkout_are_named_with_major_version_and_integrity() -> None:
    wanted = json.loads((ROOT / "setup" / "browser_files.json").read_text())
    assert wanted["htmx.org"]["version"].startswith("2.")
    assert all(about["integrity"].startswith("sha512-") for about in wanted.values())
    assert f"/{browser_files.DIRECTORY}/" in (ROOT / ".gitignore").read_text().splitlines()
