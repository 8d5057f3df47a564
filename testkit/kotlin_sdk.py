"""The Kotlin SDKs of `sdk/jvm`, built by Maven once for their sources, with their tests and their pages' snippets."""

import fcntl
import functools
import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

from testkit.maven import maven
from testkit.programs import needed
from testkit.repository import ROOT

SOURCES = ROOT / "sdk/jvm"
VECTORS = ROOT / "sdk/conformance/vectors"
PAGES = (ROOT / "docs/kotlin-sdk.md", ROOT / "sdk/README.md")
OKHTTP_PAGE = ROOT / "docs/okhttp.md"
ANDROID_PAGE = ROOT / "docs/android-sdk.md"
COROUTINES_PAGE = ROOT / "docs/coroutines.md"
_CACHE = ROOT / ".cache/kotlin-sdk"
ANDROIDS = ROOT / ".cache/androids"
"""Robolectric's Androids, 600 MB, which all builds share."""
LEVELS = ("24", "26", "34", "35")
"""The API levels of these: Android 7, 8, 14 and 15."""

_BOUND_S = 1000
_FLAGS = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto")
"""For programs that run for a second: they start faster."""

_BUILD = ("dependency:build-classpath", "-Dmdep.outputFile=target/classpath", "-Dmaven.test.failure.ignore=true")
_OPENED = ("--add-opens=java.base/java.lang=ALL-UNNAMED", "--add-opens=java.base/java.util=ALL-UNNAMED")


class BuiltModule(NamedTuple):
    """`folder` is that of a built module; its `target` has the artifact, the classes and the tests' reports."""

    folder: Path

    def artifact(self, suffix: str) -> Path:
        """Return the jar or the AAR."""
        made = [path for path in (self.folder / "target").glob(f"carillon-*.{suffix}") if "-tests." not in path.name]
        (artifact,) = made
        return artifact

    def test_cases(self) -> list[ElementTree.Element]:
        reports = (self.folder / "target/surefire-reports").glob("*.xml")
        return [case for report in reports for case in ElementTree.parse(report).iter("testcase")]

    def command(self, main: str, *options: str) -> list[str]:
        """Return the command that runs a class of the module's tests, or a snippet, with the artifact."""
        target = self.folder / "target"
        libraries = (target / "classpath").read_text().strip()
        monitor = self.folder.with_name("android") / "target/monitor/classes.jar"
        path = [str(self.artifact("jar")), str(target / "test-classes"), libraries, str(monitor)]
        return [needed("java"), *_FLAGS, *options, "-cp", os.pathsep.join(path), *main.split()]


def kotlin_sdk() -> BuiltModule:
    """Return the built SDK for the JVM; skip the test where Java or Maven is missing."""
    return BuiltModule(
        _built("device", {"device": PAGES, "device-okhttp": [OKHTTP_PAGE]}, ["-pl", "device,device-okhttp"])
    )


def okhttp_sdk() -> BuiltModule:
    """Return the built connector for OkHttp."""
    return BuiltModule(kotlin_sdk().folder.with_name("device-okhttp"))


def android_sdk() -> BuiltModule:
    """Return the built SDK for Android, tested on each of Robolectric's Androids, in two minutes; what uses it too.

    It is built after the one for the JVM, so that no two builds fetch the same files.
    """
    kotlin_sdk()
    pages = {"android": [ANDROID_PAGE], "android-ktx": [COROUTINES_PAGE]}
    options = ["-pl", "sample,android-ktx", "-am", f"-Dandroids={ANDROIDS}", "-Duntested=true"]
    return BuiltModule(_built("android", pages, options))


def coroutines_sdk() -> BuiltModule:
    """Return the built SDK for apps with coroutines."""
    return BuiltModule(android_sdk().folder.with_name("android-ktx"))


def sample_app() -> BuiltModule:
    """Return the sample app for Android, as Maven leaves it to `setup.android_sample`."""
    return BuiltModule(android_sdk().folder.with_name("sample"))


def run_on_android(sdk: BuiltModule, main: str, level: str, *options: str) -> list[str]:
    """Return the command that runs a class of JUnit on the Android of an API level, in the module's folder."""
    robolectric = {"offline": "true", "dependency.dir": ANDROIDS, "enabledSdks": level}
    properties = [f"-Drobolectric.{name}={value}" for name, value in robolectric.items()]
    return sdk.command(f"org.junit.runner.JUnitCore {main}", *properties, *_OPENED, *options)


def _built(module: str, pages: Mapping[str, Sequence[Path]], options: Sequence[str]) -> Path:
    """Return the folder of a module, built with others; `pages` by the module whose tests have their snippets."""
    needed("java")
    made = _CACHE / _digest(module, [page for each in pages.values() for page in each])
    _CACHE.mkdir(parents=True, exist_ok=True)
    with (_CACHE / f"{module}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        listed = tuple((name, page) for name, each in pages.items() for page in each)
        failed = "" if made.exists() else _build(made, listed, tuple(options))
    if failed:
        raise RuntimeError(f"Maven did not build carillon-{module}:\n{failed}")
    return made / module


def snippets(page: Path) -> list[str]:
    """Return the Kotlin programs of a page."""
    return re.findall(r"^```kotlin\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)


def snippet_main(page: Path, number: int) -> str:
    """Return the class that runs a program of a page."""
    return f"docs.{_package(page)}.Snippet{number}Kt"


def _digest(module: str, pages: Iterable[Path]) -> str:
    """Return what changes with every file that is built from, and with this one; `api.txt` is written from a build."""
    others = {"android", "android-ktx", "sample"} if module == "device" else {"device-okhttp"}
    files = [
        path
        for path in sorted(SOURCES.rglob("*"))
        if path.is_file() and path.name != "api.txt" and "target" not in path.parts
        if path.relative_to(SOURCES).parts[0] not in others
    ]
    digest = hashlib.sha256(module.encode())
    for path in [*files, *pages, *sorted(VECTORS.iterdir()), Path(__file__)]:
        digest.update(f"{path.relative_to(ROOT)}\n".encode() + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]


@functools.cache
def _build(made: Path, pages: tuple[tuple[str, Path], ...], options: tuple[str, ...]) -> str:
    """Build modules, once in a run of the tests; return what Maven said if it failed, else ""."""
    with tempfile.TemporaryDirectory(dir=_CACHE) as scratch:
        source = Path(scratch, "jvm")
        shutil.copytree(SOURCES, source, ignore=shutil.ignore_patterns("target"))
        shutil.copytree(VECTORS, source.with_name("conformance") / VECTORS.name)
        for module, page in pages:
            for number, text in enumerate(snippets(page)):
                _write_snippet(source / module / "src/test/kotlin/docs" / _package(page), number, text)
        if said := maven(["package", *_BUILD, *options], source, _BOUND_S):
            return said
        for classpath in source.glob("*/target/classpath"):
            classpath.write_text(classpath.read_text().replace(str(source), str(made)))
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
