"""Writes the Kotlin SDKs, once Maven has built them, as a Maven repository: each artifact with a POM of its own.

Gradle and Maven then fetch an SDK with what it needs. `python -m setup.maven_repository FOLDER` writes the repository
into FOLDER, and the artifacts alone beside it.
"""

import hashlib
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parent.parent
MODULES = ROOT / "sdk/jvm"
PACKAGING: Mapping[str, str] = {"device": "jar", "device-okhttp": "jar", "android": "aar", "android-ktx": "jar"}
"""By module, the form of its artifact. The sample is an app, not a library."""

_XMLNS = "http://maven.apache.org/POM/4.0.0"
_NAME = f"{{{_XMLNS}}}"


def write(modules: Path, repository: Path) -> list[Path]:
    """Write the repository; return the artifacts in it."""
    shutil.rmtree(repository, ignore_errors=True)
    return [_write(modules, module, packaging, repository) for module, packaging in PACKAGING.items()]


def _write(modules: Path, module: str, packaging: str, repository: Path) -> Path:
    pom = own_pom(modules, module)
    group, name, version = (pom.findtext(field, "") for field in ("groupId", "artifactId", "version"))
    folder = repository / group.replace(".", "/") / name / version
    folder.mkdir(parents=True)
    artifact = folder / f"{name}-{version}.{packaging}"
    shutil.copyfile(modules / module / "target" / artifact.name, artifact)
    written = artifact.with_suffix(".pom")
    ElementTree.indent(pom)
    ElementTree.ElementTree(pom).write(written, encoding="utf-8", xml_declaration=True)
    for file in (artifact, written):
        digest = hashlib.sha1(file.read_bytes(), usedforsecurity=False).hexdigest()
        file.with_name(f"{file.name}.sha1").write_text(digest)
    return artifact


def own_pom(modules: Path, module: str) -> ElementTree.Element:
    """Return what a user of the module needs of its `pom.xml`, without the parent and how it is built."""
    parent, source = (_parsed(path / "pom.xml") for path in (modules, modules / module))
    properties = {each.tag.removeprefix(_NAME): each.text or "" for each in parent.iterfind(f"{_NAME}properties/*")}
    properties["project.version"] = parent.findtext(f"{_NAME}version", "")

    def text(element: ElementTree.Element, field: str) -> str:
        return re.sub(r"\$\{(.*?)\}", lambda found: properties[found[1]], element.findtext(f"{_NAME}{field}", ""))

    pom = ElementTree.Element("project", xmlns=_XMLNS)
    _add(pom, "modelVersion", "4.0.0")
    for field in ("groupId", "version"):
        _add(pom, field, text(parent, field))
    _add(pom, "artifactId", text(source, "artifactId"))
    _add(pom, "packaging", PACKAGING[module])
    _add(pom, "name", text(source, "name"))
    needed = ElementTree.SubElement(pom, "dependencies")
    for dependency in source.iterfind(f"{_NAME}dependencies/{_NAME}dependency"):
        if dependency.find(f"{_NAME}scope") is not None:
            continue  # for the build and its tests
        copied = ElementTree.SubElement(needed, "dependency")
        name = text(dependency, "artifactId")
        for field in ("groupId", "artifactId", "version"):
            _add(copied, field, text(dependency, field))
        if PACKAGING.get(name.removeprefix("carillon-")) == "aar":
            _add(copied, "type", "aar")
        _add(copied, "scope", "compile")
    return pom


def _parsed(path: Path) -> ElementTree.Element:
    return ElementTree.parse(path).getroot()  # noqa: S314 - of this clone


def _add(element: ElementTree.Element, field: str, text: str) -> None:
    ElementTree.SubElement(element, field).text = text


def main(arguments: Sequence[str]) -> int:
    (folder,) = arguments
    for artifact in write(MODULES, Path(folder)):
        shutil.copyfile(artifact, Path(folder).parent / artifact.name)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
