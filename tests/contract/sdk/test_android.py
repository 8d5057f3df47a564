"""The Android SDK as it is built: its tests on each Android, the page's programs, the AAR, its manifest in an app's."""

import re
import zipfile
from collections import defaultdict
from xml.etree import ElementTree

import pytest

from testkit.kotlin_sdk import ANDROID_PAGE, LEVELS, SOURCES, BuiltModule, android_sdk, snippets
from tests.contract.sdk.test_kotlin import failures

MODULE = SOURCES / "android"
SMALL_BYTES = 96 << 10
BUILT_IN_TIME = pytest.mark.timeout(1200)
"""For a test that may be the first, and waits for the build: on a new machine it fetches a gigabyte."""
_ANDROID = "{http://schemas.android.com/apk/res/android}"
_NAME = f"{_ANDROID}name"

PERMISSIONS = {"INTERNET", "ACCESS_NETWORK_STATE", "WAKE_LOCK", "VIBRATE", "POST_NOTIFICATIONS"}
"""What the SDK adds to an app: no exact alarm, no start with the phone, no list of apps, no foreground service."""

APP = """
<manifest xmlns:android="http://schemas.android.com/apk/res/android" package="org.example.app">
  <application android:label="Example">
    <activity android:name=".Main" android:exported="true" />
  </application>
</manifest>
"""


@pytest.fixture(scope="module")
def sdk() -> BuiltModule:
    return android_sdk()


@pytest.mark.long
@BUILT_IN_TIME
def test_its_own_tests_pass_on_each_android(sdk: BuiltModule) -> None:
    cases = sdk.test_cases()
    assert failures(cases) == []
    levels = defaultdict(set)
    for case in cases:
        name, level = re.findall(r"(.*)\[(\d+)\]", str(case.get("name")))[0]
        levels[str(case.get("classname")), name].add(level)
    assert {name for name, found in levels.items() if found != set(LEVELS)} == set()
    names = {name.rpartition(".")[2] for name, _ in levels}
    assert names == {path.stem for path in (MODULE / "src/test/kotlin").rglob("*Test.kt")}


@pytest.mark.long
@BUILT_IN_TIME
def test_the_aar_is_small_and_holds_the_sdk_alone(sdk: BuiltModule) -> None:
    aar = sdk.artifact("aar")
    assert aar.name == "carillon-android-0.1.0.aar"
    assert aar.stat().st_size < SMALL_BYTES
    with zipfile.ZipFile(aar) as archive:
        assert sorted(archive.namelist()) == ["AndroidManifest.xml", "R.txt", "classes.jar", "proguard.txt"]
        assert archive.read("AndroidManifest.xml") == (MODULE / "src/main/AndroidManifest.xml").read_bytes()
        with archive.open("classes.jar") as inner, zipfile.ZipFile(inner) as jar:
            classes = [name for name in jar.namelist() if name.endswith(".class")]
    assert {name.rpartition("/")[0] for name in classes} == {"dev/carillon/android"}
    assert not any("Test" in name or "FakeGateway" in name for name in classes)
    rules = (MODULE / "src/main/proguard.txt").read_text()
    for name in re.findall(r"-keep class (?:\* extends )?([\w.]+)", rules):
        assert f"{name.replace('.', '/')}.class" in classes


def merged_manifest() -> ElementTree.Element:
    """Return an app's manifest with what the SDK's adds to it, as Android's build merges them."""
    app = ElementTree.fromstring(APP)
    library = ElementTree.parse(MODULE / "src/main/AndroidManifest.xml").getroot()
    app.extend(library.findall("uses-permission"))
    (application,) = app.findall("application")
    for each in library.findall("application"):
        assert each.attrib == {}, "an attribute of the library's application would be in conflict with the app's"
        application.extend(list(each))
    return app


def test_the_merged_manifest_exports_nothing_and_starts_nothing() -> None:
    app = merged_manifest()
    permissions = {str(each.get(_NAME)).removeprefix("android.permission.") for each in app.iter("uses-permission")}
    assert permissions == PERMISSIONS
    (application,) = app.findall("application")
    components = {str(each.get(_NAME)): each for each in application}
    assert {name for name, each in components.items() if each.get(f"{_ANDROID}exported") == "true"} == {".Main"}
    own = {name: each for name, each in components.items() if name != ".Main"}
    assert all(each.get(f"{_ANDROID}exported") == "false" for each in own.values())
    assert not any(list(each) for each in own.values()), "an intent filter lets others start it"
    assert not any(each.get(f"{_ANDROID}process") for each in own.values()), "the main process alone is connected"
    kinds = {each.tag for each in own.values()}
    assert kinds == {"activity", "receiver"}, "no service, and no provider that starts with the app"


def test_each_component_of_the_manifest_is_a_class_of_its_kind() -> None:
    sources = "".join(path.read_text() for path in (MODULE / "src/main/kotlin").rglob("*.kt"))
    kinds = {"activity": "Activity", "receiver": "BroadcastReceiver"}
    for each in merged_manifest().findall("application/*"):
        package, _, name = str(each.get(_NAME)).rpartition(".")
        if package:
            assert package == "dev.carillon.android"
            assert re.search(rf"^public class {name} : {kinds[each.tag]}\(\)", sources, re.MULTILINE)


def test_a_click_passes_through_no_receiver_and_no_service() -> None:
    """Android 12 and newer start no activity then."""
    for path in (MODULE / "src/main/kotlin").rglob("*.kt"):
        text = path.read_text()
        intents = re.findall(r"setContentIntent\((\w+)", text)
        assert set(intents) <= {"ClickActivity"}
        assert text.count("PendingIntent.FLAG_MUTABLE") == 0


def test_it_imports_nothing_but_androids_and_kotlins_own_packages() -> None:
    sources = "".join(path.read_text() for path in (MODULE / "src/main").rglob("*.kt"))
    imported = set(re.findall(r"^import (\w+(?:\.carillon\.\w+)?)", sources, re.MULTILINE))
    assert imported == {"android", "java", "kotlin", "org", "dev.carillon.device"}
    assert set(re.findall(r"^import (org\.\w+)", sources, re.MULTILINE)) == {"org.json"}


def test_the_page_names_what_goes_into_the_app() -> None:
    page = ANDROID_PAGE.read_text()
    for name in PERMISSIONS:
        assert f"`{name}`" in page
    for each in merged_manifest().findall("application/*"):
        name = str(each.get(_NAME)).rpartition(".")[2]
        assert name == "Main" or f"`{name}`" in page


def xml_snippets() -> list[ElementTree.Element]:
    """Return the page's parts of a manifest."""
    found = re.findall(r"^```xml\n(.*?)^```$", ANDROID_PAGE.read_text(), re.MULTILINE | re.DOTALL)
    opened = f'<manifest xmlns:android="{_ANDROID.strip("{}")}">'
    return [ElementTree.fromstring(f"{opened}{snippet}</manifest>") for snippet in found]


def test_the_pages_manifest_declares_the_service_and_what_it_needs() -> None:
    _, root = xml_snippets()
    (service,) = root.iter("service")
    assert service.get(_NAME) == "dev.carillon.android.ConnectionService"
    assert service.get(f"{_ANDROID}exported") == "false"
    needed = {str(each.get(_NAME)).removeprefix("android.permission.") for each in root.iter("uses-permission")}
    assert service.get(f"{_ANDROID}foregroundServiceType") == "remoteMessaging"
    assert needed == {"FOREGROUND_SERVICE", "FOREGROUND_SERVICE_REMOTE_MESSAGING"}


def test_the_pages_manifest_declares_the_service_of_its_program_for_firebase() -> None:
    root, _ = xml_snippets()
    (service,) = root.iter("service")
    assert service.get(f"{_ANDROID}exported") == "false"
    assert [each.get(_NAME) for each in service.iter("action")] == ["com.google.firebase.MESSAGING_EVENT"]
    name = str(service.get(_NAME)).removeprefix(".")
    assert any(f"class {name} : FirebaseMessagingService()" in text for text in snippets(ANDROID_PAGE))
