"""What an app may add to the Kotlin SDKs: connections by OkHttp, and coroutines."""

import zipfile
from pathlib import Path

import pytest

from testkit.gateway.role import ANDROID, RunningGateway
from testkit.kotlin_sdk import COROUTINES_PAGE, OKHTTP_PAGE, coroutines_sdk, okhttp_sdk, snippet_main, snippets
from tests.contract.sdk.test_android import BUILT_IN_TIME
from tests.contract.sdk.test_kotlin import failures
from tests.contract.sdk.test_packages import shows_a_push

SMALL_BYTES = 32 << 10


def classes(jar: Path) -> list[str]:
    with zipfile.ZipFile(jar) as archive:
        return [name for name in archive.namelist() if name.endswith(".class")]


@pytest.mark.long
async def test_the_program_with_okhttp_runs(real_gateway: RunningGateway, tmp_path: Path) -> None:
    url = f"ws://127.0.0.1:{real_gateway.port}/device/v1"
    command = okhttp_sdk().command(snippet_main(OKHTTP_PAGE, 0), f"-Durl={url}", f"-Dappkey={ANDROID}")
    await shows_a_push(command, real_gateway, tmp_path, {})


@pytest.mark.long
def test_the_jar_for_okhttp_holds_the_connector_alone() -> None:
    jar = okhttp_sdk().artifact("jar")
    assert jar.name == "carillon-device-okhttp-0.1.0.jar"
    assert jar.stat().st_size < SMALL_BYTES
    assert {name.rpartition("/")[0] for name in classes(jar)} == {"dev/carillon/okhttp"}


@pytest.mark.long
@BUILT_IN_TIME
def test_coroutines_pass_their_tests_and_the_programs_of_their_page_compile() -> None:
    sdk = coroutines_sdk()
    cases = sdk.test_cases()
    assert failures(cases) == []
    assert len(cases) == 4
    for number in range(len(snippets(COROUTINES_PAGE))):
        assert list((sdk.folder / "target/test-classes/docs/coroutines").glob(f"Snippet{number}Kt*.class"))


@pytest.mark.long
@BUILT_IN_TIME
def test_the_jar_for_coroutines_holds_nothing_else() -> None:
    jar = coroutines_sdk().artifact("jar")
    assert jar.name == "carillon-android-ktx-0.1.0.jar"
    assert jar.stat().st_size < SMALL_BYTES
    assert {name.rpartition("/")[0] for name in classes(jar)} == {"dev/carillon/android/ktx"}
