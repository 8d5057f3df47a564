"""Evaluates each clause of a filter for one device."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

from analytics.audit.details.audience import filter_text
from analytics.audit.details.text import comma_joined
from analytics.audit.device_records import DeviceRecord
from analytics.store.enum_names import enum_name
from protos.analytics.v1.analytics_pb2 import Clause, FoundValues
from protos.push.v1.push_pb2 import (
    ActivityClause,
    Attribute,
    AttributeClause,
    Comparison,
    Filter,
    ModelClause,
)

_HOLDS: Mapping[int, Callable[[int, int], bool]] = {
    Comparison.COMPARISON_GREATER: lambda opens, wanted: opens > wanted,
    Comparison.COMPARISON_LESS: lambda opens, wanted: opens < wanted,
    Comparison.COMPARISON_GREATER_OR_EQUAL: lambda opens, wanted: opens >= wanted,
    Comparison.COMPARISON_LESS_OR_EQUAL: lambda opens, wanted: opens <= wanted,
    Comparison.COMPARISON_EQUAL: lambda opens, wanted: opens == wanted,
}


def clauses(rule: Filter, device: DeviceRecord, opens: Mapping[int, int]) -> list[Clause]:
    """Return every clause with its result; none for an audience of all devices. All must hold for the filter to match.

    `opens`: the device's app opens within each number of days that the filter asks for.
    """
    return [
        *_tag_clauses(rule, device),
        *_stag_clauses(rule, device),
        *(_attribute(clause, device) for clause in rule.attributes),
        *(_activity(clause, opens.get(clause.days, 0)) for clause in rule.activity),
        *(_model(clause, device) for clause in rule.models),
    ]


def _clause(condition: Filter, holds: bool, found: str, found_values: FoundValues) -> Clause:
    text = filter_text(condition)
    return Clause(text=text, holds=holds, found=found, filter=condition, found_values=found_values)


def _tag_clauses(rule: Filter, device: DeviceRecord) -> Iterator[Clause]:
    tags = sorted(device.tags)
    found = comma_joined(*(f"tag {tag}" for tag in tags)) or "no tags", FoundValues(tags=tags)
    if rule.tags:
        holds = _any_group((group.tags for group in rule.tags), device.tags)
        yield _clause(Filter(tags=rule.tags), holds, *found)
    if rule.not_tags:
        holds = not _any_group((group.tags for group in rule.not_tags), device.tags)
        yield _clause(Filter(not_tags=rule.not_tags), holds, *found)


def _stag_clauses(rule: Filter, device: DeviceRecord) -> Iterator[Clause]:
    stags = sorted(device.stags)
    found = comma_joined(*(f'stag "{stag}"' for stag in stags)) or "no stags", FoundValues(stags=stags)
    if rule.stags:
        holds = _any_group((group.stags for group in rule.stags), device.stags)
        yield _clause(Filter(stags=rule.stags), holds, *found)
    if rule.not_stags:
        holds = not _any_group((group.stags for group in rule.not_stags), device.stags)
        yield _clause(Filter(not_stags=rule.not_stags), holds, *found)


def _any_group(groups: Iterable[Sequence[int] | Sequence[str]], have: Collection[int | str]) -> bool:
    return any(all(wanted in have for wanted in group) for group in groups)


def _attribute(clause: AttributeClause, device: DeviceRecord) -> Clause:
    name = enum_name(Attribute.DESCRIPTOR, clause.attribute, "ATTRIBUTE_")
    value = device.attribute(name)
    within = value != "" and value in clause.values
    found = f"{name} {value or 'unknown'}"
    return _clause(Filter(attributes=[clause]), within != clause.negated, found, FoundValues(attribute=value))


def _activity(clause: ActivityClause, opens: int) -> Clause:
    holds = _HOLDS.get(clause.comparison)
    known = holds is not None and holds(opens, clause.opens)
    return _clause(Filter(activity=[clause]), known, f"{opens} app opens", FoundValues(opens=opens))


def _model(clause: ModelClause, device: DeviceRecord) -> Clause:
    brand, model = device.attribute("brand"), device.attribute("model")
    is_one_of_pairs = model != "" and (brand, model) in [(pair.brand, pair.model) for pair in clause.pairs]
    within = is_one_of_pairs or (brand != "" and brand in clause.brands)
    found = f"model {brand or 'unknown'} {model or 'unknown'}"
    return _clause(Filter(models=[clause]), within != clause.negated, found, FoundValues(brand=brand, model=model))
