"""Declares what the published documents show of requests, without changing how a request is decoded.

A struct's class variable `shown_rules` holds JSON schemas that it has to fit as well: rules about several fields, which
code checks.
"""

from collections.abc import Sequence
from typing import Any

Rule = dict[str, Any]


class Shown:
    """The type that documents show of a field in place of the one that decodes it.

    `Annotated[msgspec.Raw, Shown(Tags | None)]` declares the type of a field that is decoded later or checked by code.
    Several kinds mean a value of any of them, structs included, which msgspec has no unions of.
    """

    def __init__(self, *kinds: Any) -> None:
        self.kinds = kinds


def required_one_of(*names: str) -> Rule:
    """Return the rule that one of these fields is given, and not null."""
    return {"anyOf": [_given(name) for name in names]}


def required_where(field: str, values: list[int], *paths: str) -> Rule:
    """Return the rule that these fields are given, and not null, where `field` has one of the values.

    `param.dur` is the field `dur` of the field `param`.
    """
    condition = {"properties": {field: {"enum": [*values, *map(str, values)]}}, "required": [field]}
    return {"if": condition, "then": _given(*paths)}


def shaped_by(field: str, names: Sequence[str], where_list: Rule, otherwise: Rule) -> Rule:
    """Return the rule that the fields `names` fit `where_list` where `field` is a list, and else `otherwise`."""
    condition = {"properties": {field: {"type": "array"}}, "required": [field]}
    return {
        "if": condition,
        "then": {"properties": dict.fromkeys(names, where_list)},
        "else": {"properties": dict.fromkeys(names, otherwise)},
    }


def _given(*paths: str) -> Rule:
    """Return the schema of an object with these fields, none of them null."""
    inner: dict[str, list[str]] = {}
    for path in paths:
        name, _, rest = path.partition(".")
        inner.setdefault(name, []).extend([rest] if rest else [])
    values = {name: _given(*rests) if rests else {"not": {"type": "null"}} for name, rests in inner.items()}
    return {"required": list(values), "properties": values}
