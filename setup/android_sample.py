"""Makes the APK of the sample app in `sdk/jvm/sample` once Maven has compiled it: shrunk, aligned, signed, verified.

It takes the place of the Android SDK: aapt2, zipalign and apksigner come from Debian, R8 from Maven. Where a program is
missing root installs it by apt-get, unless `CARILLON_TEST_INSTALL=no`.

`python -m setup.android_sample FILE` writes the APK, or says what is missing for it.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

from setup.doctor import OF_ANDROID, installed, manager, package
from setup.test_programs import install_packages

ROOT = Path(__file__).resolve().parent.parent
MODULE = ROOT / "sdk/jvm/sample"
LIBRARY = ROOT / "sdk/jvm/android/src/main"
KEY = ROOT / ".cache/android-sample.keystore"
"""The key of this clone's samples: Android updates an app only by one with the same key."""

MINIMAL_API = "24"
_PASSWORD = "carillon"  # noqa: S105 - of a key that proves nothing
_ANDROID = "http://schemas.android.com/apk/res/android"
_TIMEOUT_S = 900
_JVM = ("-Xmx1500m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


class BuildError(Exception):
    """A program failed; the text is the end of what it said."""


def impossible() -> str:
    """Install the programs that are missing; return why that is not possible, or ""."""
    if not (lacking := _lacking()):
        return ""
    if shutil.which("apt-get") is None:
        return f"{_lacking()[0]} is not installed, and this machine has no apt-get to install it"
    why = install_packages([package(name) for name in lacking])
    return f"{left[0]} is not installed, and {why or 'its package does not bring it'}" if (left := _lacking()) else ""


def merged_manifest(app: Path, library: Path = LIBRARY / "AndroidManifest.xml") -> ElementTree.Element:
    """Return the app's manifest with the library's permissions and components, as the Android SDK merges them."""
    ElementTree.register_namespace("android", _ANDROID)
    manifest, added = (ElementTree.parse(path).getroot() for path in (app, library))  # noqa: S314 - of this clone
    manifest.extend(added.findall("uses-permission"))
    (application,) = manifest.findall("application")
    for each in added.findall("application"):
        application.extend(list(each))
    return manifest


def build(module: Path, apk: Path, key: Path = KEY) -> None:
    """Write the signed APK of the module, which Maven has built. BuildError: a program failed."""
    with tempfile.TemporaryDirectory(dir=module / "target") as scratch:
        work = Path(scratch)
        _link(module, work)
        _shrink(module, work)
        with zipfile.ZipFile(work / "linked.apk", "a", zipfile.ZIP_DEFLATED) as archive:
            for dex in sorted(work.glob("classes*.dex")):
                archive.write(dex, dex.name)
        _run("zipalign", "4", work / "linked.apk", work / "aligned.apk")
        if not key.exists():
            _make_key(key)
        made = work / "signed.apk"
        signed_by: list[str | Path] = ["--ks", key, "--ks-pass", f"pass:{_PASSWORD}", "--min-sdk-version", MINIMAL_API]
        _run("apksigner", "sign", *signed_by, "--out", made, work / "aligned.apk")
        _run("apksigner", "verify", "--min-sdk-version", MINIMAL_API, made)
        shutil.move(made, apk)


def _link(module: Path, work: Path) -> None:
    """Write `linked.apk`, the manifest and the resources in Android's form, and `names.pro`, the classes they name."""
    sources = module / "src/main"
    manifest = ElementTree.ElementTree(merged_manifest(sources / "AndroidManifest.xml"))
    manifest.write(work / "AndroidManifest.xml", encoding="utf-8", xml_declaration=True)
    _run("aapt2", "compile", "--dir", sources / "res", "-o", work / "resources.zip")
    named: list[str | Path] = ["--manifest", work / "AndroidManifest.xml", "--proguard", work / "names.pro"]
    _run("aapt2", "link", "-I", _android(module), *named, "-o", work / "linked.apk", work / "resources.zip")


def _shrink(module: Path, work: Path) -> None:
    """Write `classes.dex`: what the app uses of its classes and libraries."""
    target = module / "target"
    jars = [*target.glob("carillon-sample-*.jar"), *sorted((target / "libraries").glob("*.jar"))]
    java = installed("java")
    assert java is not None, "Maven has just run by it"
    libraries: list[str | Path] = ["--lib", _android(module), "--lib", Path(java).resolve().parents[1]]
    rules: list[str | Path] = ["--pg-conf", work / "names.pro", "--pg-conf", LIBRARY / "proguard.txt"]
    r8: list[str | Path] = ["-cp", target / "r8.jar", "com.android.tools.r8.R8", "--release", "--min-api", MINIMAL_API]
    _run(java, *_JVM, *r8, *libraries, *rules, "--output", work, *jars)


def _android(module: Path) -> str:
    """Return the jar of Android's classes and resources."""
    return (module / "target/android-all").read_text().strip()


def _make_key(key: Path) -> None:
    key.parent.mkdir(parents=True, exist_ok=True)
    new = key.with_suffix(".new")
    new.unlink(missing_ok=True)
    kind = ["-keyalg", "RSA", "-keysize", "2048", "-validity", "10000", "-alias", "sample", "-dname", "CN=Sample"]
    _run("keytool", "-genkeypair", "-keystore", new, "-storepass", _PASSWORD, *kind)
    new.rename(key)


def _run(*command: str | Path) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)  # noqa: S603
    if done.returncode:
        raise BuildError(f"{os.fspath(command[0])} failed: {done.stdout[-2000:]}{done.stderr[-2000:]}")


def _lacking() -> list[str]:
    return [name for name in OF_ANDROID if installed(name) is None]


def _fix() -> str:
    if manager() == "apt-get":
        return f"apt-get install {' '.join(package(name) for name in _lacking())}"
    return "put build-tools/VERSION of an Android SDK on the PATH"


def main(arguments: Sequence[str]) -> int:
    (apk,) = arguments
    if why := impossible():
        print(f"The sample app for Android is left out, because {why}. To build it: {_fix()}", file=sys.stderr)
        return 0
    try:
        build(MODULE, Path(apk))
    except BuildError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
