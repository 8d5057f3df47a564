"""The Kotlin SDK as it is built: its own tests, the jar, and the programs of its page and of the README."""

import asyncio
import re
import subprocess
import zipfile
from collections.abc import Iterable
from pathlib import Path
from xml.etree import ElementTree

import pytest

from carillon_device import FINAL
from testkit.gateway.role import ANDROID, IOS, RunningGateway
from testkit.gateway.websocket import BOUND_S
from testkit.kotlin_sdk import PAGES, SOURCES, BuiltModule, kotlin_sdk, snippet_main
from tests.contract.sdk.test_packages import shows_a_push

SMALL_BYTES = 128 << 10


@pytest.fixture(scope="module")
def sdk() -> BuiltModule:
    return kotlin_sdk()


@pytest.mark.long
def test_its_own_tests_pass(sdk: BuiltModule) -> None:
    cases = sdk.test_cases()
    assert failures(cases) == []
    names = {str(case.get("classname")).rpartition(".")[2] for case in cases}
    assert names == {path.stem for path in (SOURCES / "device/src/test/kotlin").rglob("*Test.kt")}


def failures(cases: Iterable[ElementTree.Element]) -> list[str]:
    """Return what failed, or was left out, of the tests of a module."""
    return [
        f"{case.get('classname')}: {case.get('name')}: {bad.text}"
        for case in cases
        for bad in case
        if bad.tag in ("failure", "error", "skipped")
    ]


@pytest.mark.long
def test_the_jar_is_small_and_holds_the_sdk_alone(sdk: BuiltModule) -> None:
    jar = sdk.artifact("jar")
    assert jar.name == "carillon-device-0.1.0.jar"
    assert jar.stat().st_size < SMALL_BYTES
    with zipfile.ZipFile(jar) as archive:
        classes = [name for name in archive.namelist() if name.endswith(".class")]
    assert "dev/carillon/device/CarillonDevice.class" in classes
    assert {name.rpartition("/")[0] for name in classes} == {"dev/carillon/device"}
    assert not any("Test" in name or "Driver" in name for name in classes)


def test_the_build_names_no_repository_and_no_other_library() -> None:
    poms = [ElementTree.parse(path).getroot() for path in SOURCES.rglob("pom.xml") if "target" not in path.parts]
    assert len(poms) == 6
    name = "{http://maven.apache.org/POM/4.0.0}"
    for pom in poms:
        assert [each.tag for each in pom.iter() if "epository" in each.tag or each.tag == f"{name}url"] == []
    needed = {
        str(dependency.findtext(f"{name}artifactId"))
        for pom in poms
        for dependency in pom.iter(f"{name}dependency")
        if dependency.findtext(f"{name}scope") not in ("test", "provided")
    }
    assert needed == {"kotlin-stdlib", "carillon-device", "carillon-android", "okhttp", "kotlinx-coroutines-core-jvm"}


def test_it_imports_nothing_but_javas_and_kotlins_own_packages() -> None:
    sources = "".join(path.read_text() for path in (SOURCES / "device/src/main").rglob("*.kt"))
    imported = set(re.findall(r"^import (\w+)", sources, re.MULTILINE))
    assert imported == {"java", "javax", "kotlin"}


@pytest.mark.long
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
async def test_the_program_of_the_page_runs(
    sdk: BuiltModule, real_gateway: RunningGateway, tmp_path: Path, page: Path
) -> None:
    await shows_a_push(command(sdk, page, real_gateway, ANDROID), real_gateway, tmp_path, {})


@pytest.mark.long
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
async def test_a_program_that_is_refused_says_why_and_ends(
    sdk: BuiltModule, real_gateway: RunningGateway, tmp_path: Path, page: Path
) -> None:
    program = await asyncio.create_subprocess_exec(
        *command(sdk, page, real_gateway, IOS), cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    async with asyncio.timeout(BOUND_S):
        printed, errors = await program.communicate()
    assert (program.returncode, errors) == (0, b"")
    assert printed.decode().splitlines()[-1] == FINAL["unauthorized"]


def command(sdk: BuiltModule, page: Path, gateway: RunningGateway, appkey: str) -> list[str]:
    """Return the command that runs the first program of a page with this gateway."""
    url = f"ws://127.0.0.1:{gateway.port}/device/v1"
    return sdk.command(snippet_main(page, 0), f"-Durl={url}", f"-Dappkey={appkey}")
