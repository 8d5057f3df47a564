"""What can be said of the Swift SDK's sources without Swift."""

import os
import plistlib
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from setup import swift_toolchain
from testkit.swift_sdk import FRAMEWORKS, PAGE, SOURCES, snippets

APPLES_LINES = 200
"""Bound of what only Apple's systems can run."""

LIBRARY = SOURCES / "Sources/Carillon"
SAMPLE = SOURCES / "Sample"


def imports(path: Path) -> set[str]:
    return set(re.findall(r"^import (\w+)", path.read_text(), re.MULTILINE))


def test_apples_frameworks_are_named_in_few_lines_alone() -> None:
    files = sorted(LIBRARY.rglob("*.swift"))
    apples = [path for path in files if imports(path) & set(FRAMEWORKS)]
    assert apples == sorted((LIBRARY / "Apple").glob("*.swift"))
    assert sum(len(path.read_text().splitlines()) for path in apples) < APPLES_LINES
    assert set().union(*map(imports, files)) == {"Foundation", "FoundationNetworking", *FRAMEWORKS}
    assert {path.stem for path in (SOURCES / "Conformance/Stubs").glob("*.swift")} == set(FRAMEWORKS)


def test_the_package_needs_nothing() -> None:
    manifest = (SOURCES / "Package.swift").read_text()
    assert ".package(" not in manifest
    assert "[.iOS(.v13)]" in manifest


def test_no_class_of_the_app_is_changed() -> None:
    text = "".join(path.read_text() for path in LIBRARY.rglob("*.swift"))
    for name in ("method_exchangeImplementations", "class_replaceMethod", "ObjectiveC", "UIApplication.shared"):
        assert name not in text, name


def test_the_privacy_manifest_names_what_is_sent_and_no_tracking() -> None:
    manifest = plistlib.loads((LIBRARY / "PrivacyInfo.xcprivacy").read_bytes())
    assert (manifest["NSPrivacyTracking"], manifest["NSPrivacyTrackingDomains"]) == (False, [])
    kinds = {
        each["NSPrivacyCollectedDataType"].removeprefix("NSPrivacyCollectedDataType")
        for each in manifest["NSPrivacyCollectedDataTypes"]
    }
    assert kinds == {"DeviceID", "UserID", "ProductInteraction"}
    assert not any(each["NSPrivacyCollectedDataTypeTracking"] for each in manifest["NSPrivacyCollectedDataTypes"])
    text = "".join(path.read_text() for path in LIBRARY.rglob("*.swift"))
    for needs_a_reason in ("UserDefaults", "systemUptime", "modificationDate", "creationDate", "volumeAvailable"):
        assert needs_a_reason not in text, needs_a_reason


def test_the_page_calls_every_function_of_the_device() -> None:
    text = (LIBRARY / "CarillonDevice.swift").read_text() + (LIBRARY / "Apple/Notifications.swift").read_text()
    functions = set(re.findall(r"^    (?:public|open)(?: static)? func (\w+)", text, re.MULTILINE))
    assert len(functions) > 10
    programs = "".join(snippets(PAGE))
    assert {name for name in functions if not re.search(rf"\b{name}[( ]", programs)} == set()


def test_the_samples_project_names_what_is_there() -> None:
    project = yaml.safe_load((SAMPLE / "project.yml").read_text())
    assert (SAMPLE / project["packages"]["Carillon"]["path"] / "Package.swift").exists()
    assert project["settings"]["base"]["APP_GROUP"].startswith("group.")
    assert set(project["targets"]) == {"CarillonSample", "NotificationService"}
    for target in project["targets"].values():
        assert all((SAMPLE / folder).is_dir() for folder in target["sources"])
        assert {"package": "Carillon"} in target["dependencies"]
        settings = target["settings"]["base"]
        information = plistlib.loads((SAMPLE / settings["INFOPLIST_FILE"]).read_bytes())
        entitlements = plistlib.loads((SAMPLE / settings["CODE_SIGN_ENTITLEMENTS"]).read_bytes())
        assert information["CarillonAppGroup"] == "$(APP_GROUP)"
        assert entitlements["com.apple.security.application-groups"] == ["$(APP_GROUP)"]
    assert {"target": "NotificationService"} in project["targets"]["CarillonSample"]["dependencies"]
    assert not list(SAMPLE.glob("*.xcodeproj"))


def test_the_sample_opens_links_and_gets_pushes() -> None:
    app = plistlib.loads((SAMPLE / "App/Info.plist").read_bytes())
    assert app["CFBundleURLTypes"][0]["CFBundleURLSchemes"] == ["carillon"]
    assert app["UIBackgroundModes"] == ["remote-notification"]
    ((scene,),) = app["UIApplicationSceneManifest"]["UISceneConfigurations"].values()
    extension = plistlib.loads((SAMPLE / "NotificationService/Info.plist").read_bytes())["NSExtension"]
    assert extension["NSExtensionPointIdentifier"] == "com.apple.usernotifications.service"
    classes = {scene["UISceneDelegateClassName"]: "App", extension["NSExtensionPrincipalClass"]: "NotificationService"}
    for named, folder in classes.items():
        name = named.removeprefix("$(PRODUCT_MODULE_NAME).")
        assert f"final class {name}: " in (SAMPLE / folder / f"{name}.swift").read_text()
    assert "aps-environment" in (SAMPLE / "App/CarillonSample.entitlements").read_text()


def test_swift_is_left_out_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert swift_toolchain.toolchain() == "Swift is not installed, and this machine has no apt-get to set it up"
    for name in ("apt-get", "dpkg-deb", "unshare"):
        (tmp_path / name).touch(0o755)
    assert swift_toolchain.toolchain() == "Swift is not installed, and only root may set it up"
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setenv("CARILLON_TEST_INSTALL", "no")
    assert swift_toolchain.main([]) == 0
    assert "the Swift SDK: left out, because" in capsys.readouterr().err
    assert "forbids" in str(swift_toolchain.toolchain())
    monkeypatch.delenv("CARILLON_TEST_INSTALL")
    with monkeypatch.context() as full:
        full.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=10**9))
        assert str(swift_toolchain.toolchain()).endswith(f"less than 8 GB are free in {tmp_path}/carillon")
    (tmp_path / "apt-get").write_text("#!/bin/sh\necho 'E: Failed to fetch the list\nE: ignored' >&2\nexit 100\n")
    assert swift_toolchain.toolchain() == "Swift could not be set up: E: Failed to fetch the list"
    assert "which takes a minute" in capsys.readouterr().err
    assert not swift_toolchain.folder().exists()
    swift_toolchain.folder().mkdir()
    (swift_toolchain.folder() / "carillon-swift").touch()
    assert swift_toolchain.toolchain() == swift_toolchain.Swift(swift_toolchain.folder())
