"""Text of an audience and of the clauses of its filter, for audits."""

from collections.abc import Iterable, Sequence
from typing import assert_never

from analytics.store.enum_names import enum_name
from protos.push.v1.push_pb2 import (
    ActivityClause,
    Attribute,
    AttributeClause,
    Audience,
    Comparison,
    Filter,
    ModelClause,
    StagGroup,
    TagGroup,
)

_NUMBER_BYTES = 4
_COMPARISONS = {
    Comparison.COMPARISON_GREATER: ">",
    Comparison.COMPARISON_LESS: "<",
    Comparison.COMPARISON_GREATER_OR_EQUAL: ">=",
    Comparison.COMPARISON_LESS_OR_EQUAL: "<=",
    Comparison.COMPARISON_EQUAL: "=",
}


def audience_text(audience: Audience) -> str:
    """Return the audience as one line; commas separate the clauses of a filter, all of which must hold.

    For example `(tag 1 AND tag 2) OR (tag 5), NOT stag "news", region in 北京市`.
    """
    match audience.WhichOneof("audience"):
        case "everyone":
            return "everyone"
        case "filter":
            return filter_text(audience.filter)
        case "devices":
            return _count(len(audience.devices.numbers) // _NUMBER_BYTES, "device", "devices")
        case "tokens":
            return _count(len(audience.tokens.tokens), "token", "tokens")
        case "aliases":
            which = "all their devices" if audience.aliases.all_devices else "the latest device of each"
            return f"{_count(len(audience.aliases.aliases), 'alias', 'aliases')}, {which}"
        case None:
            return "unknown"
        case never:
            assert_never(never)


def filter_text(rule: Filter) -> str:
    """Return the clauses of a filter as one line, `everyone` if it has none."""
    clauses = [
        _groups(_tag_names(rule.tags)),
        _negated(_tag_names(rule.not_tags)),
        _groups(_stag_names(rule.stags)),
        _negated(_stag_names(rule.not_stags)),
        *(_attribute(clause) for clause in rule.attributes),
        *(_activity(clause) for clause in rule.activity),
        *(_model(clause) for clause in rule.models),
    ]
    return ", ".join(filter(None, clauses)) or "everyone"


def _tag_names(tag_groups: Iterable[TagGroup]) -> list[list[str]]:
    return [[f"tag {tag}" for tag in group.tags] for group in tag_groups]


def _stag_names(stag_groups: Iterable[StagGroup]) -> list[list[str]]:
    return [[f'stag "{stag}"' for stag in group.stags] for group in stag_groups]


def _groups(names: Sequence[Sequence[str]]) -> str:
    texts = [" AND ".join(members) for members in names]
    return texts[0] if len(texts) == 1 else " OR ".join(f"({text})" for text in texts)


def _negated(names: Sequence[Sequence[str]]) -> str:
    text = _groups(names)
    if len(names) == 1 and len(names[0]) == 1:
        return f"NOT {text}"
    return f"NOT ({text})" if text else ""


def _attribute(clause: AttributeClause) -> str:
    name = enum_name(Attribute.DESCRIPTOR, clause.attribute, "ATTRIBUTE_")
    return f"{name} {_within(clause.negated)} {_one_of(list(clause.values))}"


def _model(clause: ModelClause) -> str:
    models = [*(f"{pair.brand} {pair.model}" for pair in clause.pairs), *(f"any {brand}" for brand in clause.brands)]
    return f"model {_within(clause.negated)} {_one_of(models)}"


def _activity(clause: ActivityClause) -> str:
    days = _count(clause.days, "day", "days")
    return f"opens in {days} {_COMPARISONS.get(clause.comparison, '?')} {clause.opens}"


def _within(negated: bool) -> str:
    return "not in" if negated else "in"


def _one_of(values: Sequence[str]) -> str:
    return values[0] if len(values) == 1 else f"[{', '.join(values)}]"


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"
