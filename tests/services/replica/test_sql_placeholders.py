"""Placeholders of SQLite: Python 3.14 refuses numbered ones, `?1`, which the tests' Python may still accept."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

_ROOT = Path(__file__).parents[3]
_FOLDERS = ("analytics", "bench", "carillon", "edge", "sdk", "services", "testkit", "tests")
_NUMBERED = re.compile(r"\b(SELECT|INSERT|UPDATE|DELETE|WHERE|VALUES|LIMIT)\b.*\?\d", re.DOTALL)


def numbered_placeholders(source: str) -> Iterator[int]:
    """Yield the lines of texts in Python source that are SQL with a numbered placeholder."""
    if not re.search(r"\?\d", source):
        return
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and _NUMBERED.search(node.value):
            yield node.lineno


def test_the_search_finds_numbered_placeholders() -> None:
    assert list(numbered_placeholders('query = f"SELECT a FROM {t} WHERE b = ?1"')) == [1]
    assert not list(numbered_placeholders('query = "SELECT a FROM t WHERE b = ? AND c = :c"'))


def test_no_sql_has_numbered_placeholders() -> None:
    files = [file for folder in _FOLDERS for file in (_ROOT / folder).rglob("*.py")]
    found = [
        f"{file.relative_to(_ROOT)}:{line}"
        for file in files
        if file != Path(__file__)
        for line in numbered_placeholders(file.read_text(encoding="utf-8"))
    ]
    assert files
    assert found == []
