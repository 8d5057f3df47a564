"""The Kotlin SDK of `sdk/jvm`, built by Maven once for its sources, with its tests and the snippets of its pages.

Maven's own configuration says from which repositories the compiler comes.
"""

import fcntl
import functools
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

from testkit.programs import needed
from testkit.repository import ROOT

SOURCES = ROOT / "sdk/jvm"
PAGES = (ROOT / "docs/kotlin-sdk.md", ROOT / "sdk/README.md")
_CACHE = ROOT / ".cache/kotlin-sdk"
_BOUND_S = 280
_FLAGS = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto")
"""For programs that run for a second: they start faster."""

_BUILD = ("dependency:build-classpath", "-Dmdep.outputFile=target/classpath", "-Dmaven.test.failure.ignore=true")


class KotlinSdk(NamedTuple):
    """`device` is the folder of the built module; its `target` has the jar, the classes and the tests' reports."""

    device: Path

    @property
    def jar(self) -> Path:
        (jar,) = (self.device / "target").glob("carillon-device-*.jar")
        return jar

    def command(self, main: str, *options: str) -> list[str]:
        """Return the command that runs a class of the module's tests, or a snippet, with the jar."""
        libraries = (self.device / "target/classpath").read_text().strip()
        path = os.pathsep.join([str(self.jar), str(self.device / "target/test-classes"), libraries])
        return [needed("java"), *_FLAGS, *options, "-cp", path, main]


def kotlin_sdk() -> KotlinSdk:
    """Return the built SDK; skip the test where Java or Maven is missing."""
    needed("java")
    maven = needed("mvn")
    made = _CACHE / _digest()
    _CACHE.mkdir(parents=True, exist_ok=True)
    with (_CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        failed = "" if made.exists() else _build(maven, made)
    if failed:
        raise RuntimeError(f"Maven did not build the Kotlin SDK:\n{failed}")
    return KotlinSdk(made / "device")


def snippets(page: Path) -> list[str]:
    """Return the Kotlin programs of a page."""
    return re.findall(r"^```kotlin\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)


def snippet_main(page: Path, number: int) -> str:
    """Return the class that runs a program of a page."""
    return f"docs.{_package(page)}.Snippet{number}Kt"


def _digest() -> str:
    """Return what changes with every file that is built from, and with this one."""
    files = [path for path in sorted(SOURCES.rglob("*")) if path.is_file() and "target" not in path.parts]
    digest = hashlib.sha256()
    for path in [*files, *PAGES, Path(__file__)]:
        digest.update(f"{path.relative_to(ROOT)}\n".encode() + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]


@functools.cache
def _build(maven: str, made: Path) -> str:
    """Build the SDK, once in a run of the tests; return what Maven said if it failed, else ""."""
    with tempfile.TemporaryDirectory(dir=_CACHE) as scratch:
        source = Path(scratch, "jvm")
        shutil.copytree(SOURCES, source, ignore=shutil.ignore_patterns("target"))
        for page in PAGES:
            for number, text in enumerate(snippets(page)):
                _write_snippet(source / "device/src/test/kotlin/docs" / _package(page), number, text)
        command = [maven, "-q", "-B", "package", *_BUILD]
        done = subprocess.run(command, cwd=source, capture_output=True, text=True, timeout=_BOUND_S, check=False)
        if done.returncode:
            return done.stdout[-6000:] + done.stderr[-2000:]
        source.rename(made)
        return ""


def _write_snippet(folder: Path, number: int, text: str) -> None:
    """Write a program of a page, which takes the gateway's URL and the appkey from properties."""
    folder.mkdir(parents=True, exist_ok=True)
    text = re.sub(r'"wss?://[\w.:]+/device/v1"', 'System.getProperty("url")', text)
    text = text.replace('"1234567890"', 'System.getProperty("appkey")')
    (folder / f"Snippet{number}.kt").write_text(f"package docs.{folder.name}\n\n{text}")


def _package(page: Path) -> str:
    return re.sub(r"\W", "_", page.stem.lower())
