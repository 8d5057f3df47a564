"""Loads queries from the `sql` folder of a package."""

from functools import cache
from importlib import resources
from string import Template


@cache
def sql(package: str, name: str, **parts: str) -> str:
    """Return the query in `sql/NAME.sql` of the package without comment lines, `$part` replaced by the given text.

    Files are read once. Values are never parts: they are ClickHouse parameters, `{name:Type}`.
    """
    text = resources.files(package).joinpath("sql", f"{name}.sql").read_text(encoding="utf-8")
    lines = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("--"))
    return Template(lines).substitute(parts)
