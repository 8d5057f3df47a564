"""The Maven repository that `make sdk` writes: artifacts, POMs that need nothing of the build, checksums."""

import hashlib
from pathlib import Path
from xml.etree import ElementTree

import pytest

from setup.maven_repository import MODULES, PACKAGING, own_pom, write

_NAME = "{http://maven.apache.org/POM/4.0.0}"


@pytest.fixture
def modules(tmp_path: Path) -> Path:
    """The modules as a build leaves them, with texts in the place of artifacts."""
    folder = tmp_path / "jvm"
    for path in MODULES.rglob("pom.xml"):
        copied = folder / path.relative_to(MODULES)
        copied.parent.mkdir(parents=True, exist_ok=True)
        copied.write_text(path.read_text())
    for module, packaging in PACKAGING.items():
        target = folder / module / "target"
        target.mkdir()
        (target / f"carillon-{module}-0.1.0.{packaging}").write_text(f"the {packaging} of {module}")
    return folder


def test_each_library_has_its_artifact_its_pom_and_their_checksums(modules: Path, tmp_path: Path) -> None:
    repository = tmp_path / "maven"
    (repository / "of before").mkdir(parents=True)
    artifacts = write(modules, repository)
    assert [path.read_text() for path in artifacts] == [f"the {form} of {module}" for module, form in PACKAGING.items()]
    files = sorted(str(path.relative_to(repository)) for path in repository.rglob("*") if path.is_file())
    assert len(files) == 4 * len(PACKAGING)
    assert "dev/carillon/carillon-android/0.1.0/carillon-android-0.1.0.aar" in files
    for name in files:
        if not name.endswith(".sha1"):
            digest = hashlib.sha1((repository / name).read_bytes(), usedforsecurity=False).hexdigest()
            assert (repository / f"{name}.sha1").read_text() == digest
    pom = ElementTree.parse(repository / "dev/carillon/carillon-android/0.1.0/carillon-android-0.1.0.pom").getroot()
    found = {each.tag.removeprefix(_NAME): each.text for each in pom if not len(each)}
    assert found == {
        "modelVersion": "4.0.0",
        "groupId": "dev.carillon",
        "artifactId": "carillon-android",
        "version": "0.1.0",
        "packaging": "aar",
        "name": "Push messages for Android apps: connection, notifications, clicks",
    }


def needs(module: str) -> list[tuple[str | None, ...]]:
    return [
        tuple(each.findtext(field) for field in ("groupId", "artifactId", "version", "type"))
        for each in own_pom(MODULES, module).iter("dependency")
    ]


def test_a_pom_names_what_an_app_needs_and_nothing_of_the_build() -> None:
    assert needs("device") == [("org.jetbrains.kotlin", "kotlin-stdlib", "2.0.21", None)]
    assert needs("android") == [("dev.carillon", "carillon-device", "0.1.0", None)]
    assert needs("device-okhttp") == [
        ("dev.carillon", "carillon-device", "0.1.0", None),
        ("com.squareup.okhttp3", "okhttp", "4.12.0", None),
        ("org.jetbrains.kotlin", "kotlin-stdlib", "2.0.21", None),
    ]
    assert needs("android-ktx") == [
        ("dev.carillon", "carillon-android", "0.1.0", "aar"),
        ("org.jetbrains.kotlinx", "kotlinx-coroutines-core-jvm", "1.9.0", None),
    ]


def test_every_library_of_the_build_is_in_the_repository() -> None:
    assert {path.parent.name for path in MODULES.glob("*/pom.xml")} == {*PACKAGING, "sample"}
