"""The Swift SDK of `sdk/swift`, built and tested once for its sources, and type-checked with the snippets of its page.

Apple's frameworks exist on Apple's systems alone: what imports them is checked against the declarations of
`Conformance/Stubs`.
"""

import fcntl
import functools
import hashlib
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

from setup.swift_toolchain import Swift, toolchain
from testkit.repository import ROOT

SOURCES = ROOT / "sdk/swift"
PAGE = ROOT / "docs/swift-sdk.md"
FRAMEWORKS = ("Security", "UserNotifications", "UIKit")
MARKS = (pytest.mark.long, pytest.mark.swift, pytest.mark.timeout(1500))
"""Of each test that needs Swift, whose first one sets it up and builds."""

_CACHE = ROOT / ".cache/swift-sdk"
_BOUND_S = 600


class SwiftSdk(NamedTuple):
    """`package` is the folder of the built package, which also has what was said by its tests, by the type check and by
    the extension that ran without a configuration: `tests.log`, `types.log`, `extension.log`.
    """

    swift: Swift
    package: Path

    def driver(self, authority: str | None = None) -> list[str]:
        """Return the command of the conformance driver.

        `authority`: a file in the place of the system's authorities, for Foundation on Linux lets no program name
        others; the test is skipped where that is not possible.
        """
        if authority and self.swift.root is None:
            pytest.skip("the system's authorities are replaced for the Swift that the tests set up alone")
        return self.swift.command([str(self.package / ".build/debug/Driver")], authority=authority or "")


def swift_sdk() -> SwiftSdk:
    """Return the built SDK; skip the test where there is no Swift. AssertionError: it does not build."""
    swift = _toolchain()
    if isinstance(swift, str):
        pytest.skip(swift)
    made = _CACHE / _digest()
    _CACHE.mkdir(parents=True, exist_ok=True)
    with (_CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        failed = "" if made.exists() else _build(swift, made)
    assert failed == "", f"the Swift SDK does not build:\n{failed}"
    return SwiftSdk(swift, made / "swift")


_toolchain = functools.cache(toolchain)
"""Set up, or tried in vain, once in a run of the tests."""


def snippets(page: Path = PAGE) -> list[str]:
    """Return the Swift programs of a page."""
    return re.findall(r"^```swift\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)


def _digest() -> str:
    """Return what changes with every file that is built from, and with this one."""
    files = [path for path in sorted(SOURCES.rglob("*")) if path.is_file() and ".build" not in path.parts]
    digest = hashlib.sha256()
    for path in [*files, PAGE, Path(__file__)]:
        digest.update(f"{path.relative_to(ROOT)}\n".encode() + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]


@functools.cache
def _build(swift: Swift, made: Path) -> str:
    """Build the package, once in a run of the tests; return what Swift said if it failed, else "".

    Its own tests may fail here: they have a test for that.
    """
    scratch = made.with_suffix(".new")
    shutil.rmtree(scratch, ignore_errors=True)
    package = scratch / "swift"
    shutil.copytree(SOURCES, package, ignore=shutil.ignore_patterns(".build"))
    built = _run(swift, package, "swift", "build", "--build-tests", "-Xswiftc", "-warnings-as-errors")
    if built.returncode:
        return built.stdout[-8000:] + built.stderr[-2000:]
    tested = _run(swift, package, "swift", "test", "--skip-build", "-Xswiftc", "-warnings-as-errors")
    (package / "tests.log").write_text(f"{tested.stdout}{tested.stderr}\nexit code {tested.returncode}\n")
    (package / "types.log").write_text(_check_types(swift, package))
    scratch.rename(made)
    return ""


def _check_types(swift: Swift, package: Path) -> str:
    """Return what the compiler says of SDK, snippets and sample with Apple's declarations; "" for nothing.

    Compiled with them, the extension runs: what it prints is in `extension.log`.
    """
    (package / "apple").mkdir()
    options = ["-parse-as-library", "-warnings-as-errors", "-I", "apple"]
    sources = {name: [f"Conformance/Stubs/{name}.swift"] for name in FRAMEWORKS}
    sources["Carillon"] = _swift_files(package, "Sources")
    said = []
    for name, files in sources.items():
        module = ["-wmo", "-emit-object", "-o", f"apple/{name}.o", "-module-name", name]
        written = ["-emit-module", "-emit-module-path", f"apple/{name}.swiftmodule"]
        said.append(_run(swift, package, "swiftc", *options, *module, *written, *files))
    for number, text in enumerate(snippets()):
        (package / f"apple/Snippet{number}.swift").write_text(text)
        said.append(_run(swift, package, "swiftc", "-typecheck", *options, f"apple/Snippet{number}.swift"))
    for target in ("App", "NotificationService"):
        files = _swift_files(package, "Sample/Shared", f"Sample/{target}")
        said.append(_run(swift, package, "swiftc", "-typecheck", *options, "-module-name", "Sample", *files))
    objects = [f"apple/{name}.o" for name in sources]
    extension = ["-o", "apple/extension", "Conformance/Extension/main.swift", *objects]
    said.append(_run(swift, package, "swiftc", "-warnings-as-errors", "-I", "apple", *extension))
    ran = _run(swift, package, "apple/extension")
    (package / "extension.log").write_text(ran.stdout + ran.stderr[-2000:])
    return "".join(each.stdout + each.stderr for each in said if each.returncode)


def _swift_files(package: Path, *folders: str) -> list[str]:
    found = sorted(path for folder in folders for path in (package / folder).rglob("*.swift"))
    return [str(path.relative_to(package)) for path in found]


def _run(swift: Swift, package: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    env = {**os.environ, "CARILLON_CONFORMANCE": "1"}
    command = swift.command(words, package)
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=_BOUND_S, check=False)
