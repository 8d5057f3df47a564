"""docs/migration.md: every call that it names in the place of another SDK's exists in ours."""

import re
from pathlib import Path

import pytest

from testkit.repository import ROOT

PAGE = (ROOT / "docs/migration.md").read_text()
FORMER = ("JPush", "TPNS", "OneSignal", "Firebase Cloud Messaging")
DECLARATIONS = {
    "Android": (["jvm/android/src/main", "jvm/device/src/main"], "*.kt", r"\b(?:fun|val|class|object|interface) {}\b"),
    "iOS": (["swift/Sources"], "*.swift", r"\b(?:func|class|struct|var) {}\b"),
    "web": (["."], "*.d.ts", r"\b{}\??[(:]|\b(?:class|interface|get) {}\b"),
}
OURS = re.compile(r"^(?:Carillon\w*|Device\w*|PushHandler|device)\b")


def rows(former: str) -> list[list[str]]:
    _, _, section = PAGE.partition(f"\n## {former}\n")
    section, _, _ = section.partition("\n## ")
    lines = re.findall(r"^\| (\w.+) \|$", section, re.MULTILINE)
    return [line.split(" | ") for line in lines]


def calls(text: str) -> list[list[str]]:
    """Return the names that each call of ours in a cell consists of, such as Carillon and start."""
    spans = [span.partition("(")[0] for span in re.findall(r"`([^`]+)`", text) if OURS.match(span) or "(" in span]
    return [span.split(".") for span in spans]


@pytest.mark.parametrize("former", FORMER)
def test_every_call_of_ours_exists(former: str) -> None:
    found = rows(former)
    assert {platform for platform, *_ in found} == set(DECLARATIONS)
    missing = []
    for platform, _, here in found:
        folders, pattern, declaration = DECLARATIONS[platform]
        files: list[Path] = [path for folder in folders for path in (ROOT / "sdk" / folder).glob(f"**/{pattern}")]
        text = "".join(path.read_text() for path in files if "node_modules" not in path.parts)
        for names in calls(here):
            missing += [
                (platform, name)
                for name in names
                if name != "device" and not re.search(declaration.replace("{}", name), text)
            ]
    assert missing == []
    assert sum(len(calls(here)) for *_, here in found) > len(found) // 2
