"""Packs the React Native SDK for npm: `python -m setup.react_native_package FOLDER` writes the tarball there.

The tarball holds the sources of the SDKs for Android and iOS beside those of the module, so that the app that installs
it builds all three, and needs no other repository.
"""

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SDK = ROOT / "sdk/react-native"
_KOTLIN = [ROOT / "sdk/jvm" / module / "src/main/kotlin" for module in ("device", "android")]
_ANDROID = ROOT / "sdk/jvm/android/src/main"
_SWIFT = ROOT / "sdk/swift/Sources/Carillon"
_OF_GRADLE = re.compile(r' package="[\w.]+"|\n *<uses-sdk [^>]*/>')
"""What an app's Gradle takes from `build.gradle`, and refuses in a manifest."""

_TIMEOUT_S = 120


def stage(folder: Path) -> None:
    """Write the files of the package into a folder that does not exist yet."""
    shutil.copytree(SDK, folder, ignore=shutil.ignore_patterns("node_modules"))
    for sources in _KOTLIN:
        shutil.copytree(sources, folder / "android/sdk", dirs_exist_ok=True)
    shutil.copy(_ANDROID / "proguard.txt", folder / "android")
    manifest = _OF_GRADLE.sub("", (_ANDROID / "AndroidManifest.xml").read_text())
    (folder / "android/src/main/AndroidManifest.xml").write_text(manifest)
    shutil.copytree(_SWIFT, folder / "ios/Carillon")


def pack(target: Path) -> None:
    """Write the tarball into a folder. subprocess.SubprocessError, OSError: npm failed, or is not there."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch, "package")
        stage(folder)
        command = ["npm", "pack", "--silent", "--ignore-scripts", "--pack-destination", str(target.resolve())]
        subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=_TIMEOUT_S)  # noqa: S603


def main(arguments: Sequence[str]) -> int:
    try:
        pack(Path(arguments[0]))
    except (OSError, subprocess.SubprocessError) as error:
        print(f"the React Native SDK could not be packed: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
