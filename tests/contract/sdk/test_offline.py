"""`make sdk` fetches nothing once its tools are there: in a copy of the clone it builds every SDK without a network."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from setup import android_sample
from testkit.kotlin_sdk import ANDROIDS, sample_app
from testkit.programs import needed
from testkit.repository import ROOT
from testkit.swift_sdk import swift_sdk

BOUND_S = 900
MADE = {
    *("carillon_device-*.whl", "carillon_device-*.tar.gz", "carillon-device-*.tgz", "carillon-react-native-*.tgz"),
    *("carillon-device-*.jar", "carillon-device-okhttp-*.jar", "carillon-android-*.aar", "carillon-android-ktx-*.jar"),
    *("carillon-sample.apk", "carillon-swift-*.zip", "maven/**/*.pom"),
}


def without_network() -> list[str]:
    """Return the words before a command that has no network; skip the test where that is not possible."""
    words = [needed("unshare"), "--net", *([] if os.geteuid() == 0 else ["--map-root-user"])]
    if subprocess.run([*words, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this machine lets no program leave the network")
    return words


@pytest.mark.long
@pytest.mark.swift
@pytest.mark.timeout(2400)
def test_make_sdk_needs_no_network_after_the_first_time(tmp_path: Path) -> None:
    """Without the tests, which other tests run; the sources are those of the clone, as git lists them."""
    unshare = without_network()
    sample_app()
    swift_sdk()
    if why := android_sample.impossible():
        pytest.skip(why)
    listed = subprocess.check_output(["git", "ls-files", "-z", "Makefile", "sdk", "setup"], cwd=ROOT, text=True)
    for name in listed.rstrip("\0").split("\0"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / ".venv").symlink_to(sys.prefix)
    (tmp_path / ".cache").mkdir()
    (tmp_path / ".cache/androids").symlink_to(ANDROIDS)
    env = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    env["MAVEN_OPTS"] = "-DskipTests=true -XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    command = [*unshare, needed("make"), "-o", "install", "sdk"]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=BOUND_S, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-5000:]
    assert {pattern for pattern in MADE if not list((tmp_path / "dist").glob(pattern))} == set()
