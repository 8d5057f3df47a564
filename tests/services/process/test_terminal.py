"""Text for terminals: no control character reaches one, and a rule of the linter finds commands that would let it."""

import json
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.process.logs import printable
from testkit.repository import ROOT

TEXTS = st.text(st.characters(codec="utf-8"))
HARMFUL = "\x1b]0;owned\x07 \x9b31m \u202egpj.exe \u2028 \r\n \x7f \u00ad"


@given(TEXTS)
def test_no_control_character_is_left(text: str) -> None:
    assert all(sign.isprintable() or sign in "\u200c\u200d" for sign in printable(text))


@given(st.dictionaries(TEXTS, TEXTS))
def test_a_line_of_json_keeps_its_meaning(value: dict[str, str]) -> None:
    assert json.loads(printable(json.dumps(value, ensure_ascii=False))) == value


def test_texts_of_people_stay_as_they_are() -> None:
    for text in ("北京市", "می\u200cخواهم", "👩\u200d👧", "é e\u0301 ß ½ €"):
        assert printable(text) == text
    assert printable(HARMFUL) == ("\\u001b]0;owned\\u0007 \\u009b31m \\u202egpj.exe \\u2028 \\r\\n \\u007f \\u00ad")


@pytest.mark.parametrize(
    "code",
    [
        "import click\nclick.echo(token)",
        "from click import secho\nsecho(token)",
        "print(token)",
        "import sys\nsys.stdout.write(token)",
        "from rich.text import Text\ntable.add_row(Text(token))",
        "from rich.console import Console\nConsole().print(token)",
    ],
)
def test_the_linter_finds_other_ways_of_printing(code: str) -> None:
    command = [sys.executable, "-m", "ruff", "check", "--stdin-filename", "carillon/commands/some.py", "-"]
    found = subprocess.run(command, cwd=ROOT, input=code, capture_output=True, text=True)
    assert found.returncode == 1
    assert "TID251" in found.stdout or "T201" in found.stdout
