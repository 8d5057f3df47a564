"""What an audience is made of as the store keeps it, and the English text of that and of the clauses of a filter."""

from collections.abc import Iterable, Sequence
from typing import assert_never

from analytics.store.enum_names import enum_name
from protos.analytics.v1.details_pb2 import AudienceSummary
from protos.push.v1.push_pb2 import (
    ActivityClause,
    Attribute,
    AttributeClause,
    Comparison,
    Filter,
    ModelClause,
    StagGroup,
    TagGroup,
)

_COMPARISONS = {
    Comparison.COMPARISON_GREATER: ">",
    Comparison.COMPARISON_LESS: "<",
    Comparison.COMPARISON_GREATER_OR_EQUAL: ">=",
    Comparison.COMPARISON_LESS_OR_EQUAL: "<=",
    Comparison.COMPARISON_EQUAL: "=",
}


def stored_summary(summary: AudienceSummary) -> bytes:
    """Return the summary as the store keeps it; b"" for a filter with conditions, which has a column of its own."""
    return b"" if summary.filter.ByteSize() else summary.SerializeToString(deterministic=True)


def read_summary(stored: bytes, stored_filter: bytes) -> AudienceSummary | None:
    """Return the summary from the store; None for an audience without a filter that an older version stored."""
    if stored_filter:
        return AudienceSummary(filter=Filter.FromString(stored_filter))
    return AudienceSummary.FromString(stored) if stored else None


def audience_text(summary: AudienceSummary) -> str:
    """Return the audience as one line; commas separate the clauses of a filter, all of which must hold.

    For example `(tag 1 AND tag 2) OR (tag 5), NOT stag "news", region in 北京市`.
    """
    match summary.WhichOneof("audience"):
        case "everyone":
            return "everyone"
        case "filter":
            return filter_text(summary.filter)
        case "devices":
            return _count(summary.devices, "device", "devices")
        case "tokens":
            return _count(summary.tokens, "token", "tokens")
        case "aliases":
            which = "all their devices" if summary.aliases.all_devices else "the latest device of each"
            return f"{_count(summary.aliases.count, 'alias', 'aliases')}, {which}"
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
