"""README.md, CHANGELOG.md and docs/: every path and link they name exists, and each release has its changes."""

import re
from pathlib import Path

import pytest

from testkit.repository import ROOT

PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
FOLDERS = (
    "analytics|bench|carillon|dashboards|demo|deploy|docs|edge|protos|requirements|sdk|services|setup|testkit|tests"
)
PATH = re.compile(rf"`((?:{FOLDERS})/[\w./-]*)`")
LINK = re.compile(r"\]\(([^)#\s]*)(?:#([\w-]+))?\)")


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_path_exists(page: Path) -> None:
    assert [path for path in PATH.findall(page.read_text()) if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    for target, anchor in LINK.findall(page.read_text()):
        if "://" in target:
            continue
        file = page.parent / target if target else page
        assert file.exists(), target
        assert not anchor or anchor in anchors(file), f"{target}#{anchor}"


def test_the_changelog_has_the_form_of_keep_a_changelog() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    releases = re.findall(r"^## \[([\w.]+)\](?: - (\d{4}-\d\d-\d\d))?$", text, re.MULTILINE)
    version = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert version
    assert releases[0] == ("Unreleased", "")
    assert releases[1][0] == version[1]
    assert all(date for _, date in releases[1:])
    kinds = set(re.findall(r"^### (.+)$", text, re.MULTILINE))
    assert kinds <= {"Upgrade notes", "Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
