"""The same push as a program of an app server sends it: by curl, or in five languages with their standard library.

The secret is not in it: a sender may not see it, and whoever had a signed request could send it again.
"""

import json
from pathlib import Path
from typing import NamedTuple

DIRECTORY = Path(__file__).resolve().parent / "examples"

_NAMES = {
    "curl": ("push.sh", "curl"),
    "python": ("push.py.txt", "Python"),
    "java": ("Push.java", "Java"),
    "go": ("push.go", "Go"),
    "php": ("push.php", "PHP"),
    "node": ("push.mjs", "Node.js"),
}


class Snippet(NamedTuple):
    """A program that sends a push. The environment variable CARILLON_SECRET has the secret, or both in their order."""

    language: str
    name: str
    code: str


def snippets(text: str, url: str, apps: int) -> list[Snippet]:
    """Return the programs for a v2 request with this canonical text."""
    which = "the app's secret key" if apps == 1 else "the secret keys of the Android app and the iOS app, joined"
    found = []
    for language, (file, name) in _NAMES.items():
        code = (DIRECTORY / file).read_text().replace("@SECRET@", which)
        found.append(Snippet(language, name, code.replace("@URL@", url).replace("@TEXT@", _literal(language, text))))
    return found


def _literal(language: str, text: str) -> str:
    """Return the text as it stands between the quotation marks of a language."""
    match language:
        case "curl":
            return text.replace("'", "'\\''")
        case "php":
            return text.replace("\\", "\\\\").replace("'", "\\'")
        case "java":  # read in the charset of the system, so ASCII
            return json.dumps(text)[1:-1]
        case _:
            return json.dumps(text, ensure_ascii=False)[1:-1]
