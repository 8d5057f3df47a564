"""Errors that a person can mend are raised with all the fields of their code, and with no others."""

import ast
from collections.abc import Iterator
from pathlib import Path

from services.errors import Code, InputError
from testkit.repository import ROOT

_DEFINED = "services/errors.py"
_WORDS = "console/shell/error_words.py"


def sources() -> Iterator[tuple[Path, ast.Module]]:
    for folder in ("analytics", "carillon", "console", "edge", "services"):
        for path in (ROOT / folder).rglob("*.py"):
            text = path.read_text()
            if "Code." in text and str(path.relative_to(ROOT)) not in (_DEFINED, _WORDS):
                yield path, ast.parse(text)


def code_of(node: ast.AST) -> Code | None:
    match node:
        case ast.Attribute(value=ast.Name(id="Code"), attr=name):
            return Code.__members__.get(name)
        case _:
            return None


def test_every_code_is_in_use() -> None:
    used = {code_of(node) for _, module in sources() for node in ast.walk(module)}
    assert set(Code) - used == set()


def test_a_code_is_raised_with_its_fields() -> None:
    wrong = []
    for path, module in sources():
        for call in ast.walk(module):
            if isinstance(call, ast.Call) and call.args and (code := code_of(call.args[0])):
                given = {keyword.arg for keyword in call.keywords}
                if None not in given and given != code.fields:
                    wrong.append(f"{path}:{call.lineno}: {code.name} {sorted(map(str, given ^ code.fields))}")
    assert wrong == []


def test_the_text_of_an_error_is_made_of_its_code_and_fields() -> None:
    error = InputError(Code.NO_NETWORK, at="allow_from", text="it's {at}", problem="no")
    assert str(error) == """allow_from: "it's {at}" is no network: no; write 192.0.2.0/24 or 2001:db8::/32"""
    assert (error.code, error.fields["text"]) == (Code.NO_NETWORK, "it's {at}")
    assert (InputError("of a text").code, InputError("of a text").fields) == (None, {})
