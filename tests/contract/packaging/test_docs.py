"""README.md and docs/*.md: every path and link they name exists."""

import re
from pathlib import Path

import pytest

from testkit.repository import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FOLDERS = "analytics|bench|carillon|dashboards|deploy|docs|edge|protos|requirements|sdk|services|setup|testkit|tests"
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
