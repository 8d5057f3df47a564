"""Screenshots of the console: every page has one, and those that the documents show are committed and small."""

import re

from console.routes import ROUTES
from demo.screenshots.__main__ import MAX_BYTES, SHOWN
from demo.screenshots.pages import BEFORE_LOG_IN, SHOTS, WITHOUT_A_PAGE
from testkit.repository import ROOT

IMAGES = ROOT / "docs" / "images"


def test_every_page_of_the_console_has_a_screenshot() -> None:
    taken = {shot.route for shot in (*BEFORE_LOG_IN, *SHOTS)} - {""}
    assert taken.isdisjoint(WITHOUT_A_PAGE)
    assert taken | WITHOUT_A_PAGE.keys() == {path for path, route in ROUTES.items() if route.get is not None}
    names = [shot.name for shot in (*BEFORE_LOG_IN, *SHOTS)]
    assert len(names) == len(set(names))


def test_the_images_of_the_documents_are_those_that_are_taken_and_small() -> None:
    committed = {file.name: file.stat().st_size for file in IMAGES.iterdir()}
    assert committed.keys() == {f"{name}-{form}.webp" for name, forms in SHOWN.items() for form in forms}
    assert [name for name, size in committed.items() if size > MAX_BYTES] == []
    pages = (ROOT / "README.md", ROOT / "docs" / "console.md")
    shown = [path for page in pages for path in re.findall(r'(?:src|srcset)="([^"]+\.webp)"', page.read_text())]
    assert {path.rpartition("/")[2] for path in shown} == committed.keys()
    for page in pages:
        for path in re.findall(r'(?:src|srcset)="([^"]+\.webp)"', page.read_text()):
            assert (page.parent / path).is_file(), path
