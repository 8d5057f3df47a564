"""Texts of audiences, and their summaries in the store."""

import pytest

from analytics.audit.details_text import audience_text, read_summary, stored_summary
from protos.push.v1.push_pb2 import (
    ActivityClause,
    Aliases,
    Attribute,
    AttributeClause,
    Audience,
    BrandModel,
    Comparison,
    Devices,
    Everyone,
    Filter,
    ModelClause,
    StagGroup,
    TagGroup,
    Tokens,
)
from services.domain.push_summary import audience_summary

REGION = Attribute.ATTRIBUTE_REGION


def clause(*values: str, attribute: Attribute.ValueType = REGION, negated: bool = False) -> Filter:
    return Filter(attributes=[AttributeClause(attribute=attribute, values=values, negated=negated)])


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        (Filter(), "everyone"),
        (Filter(tags=[TagGroup(tags=[1, 2]), TagGroup(tags=[5])]), "(tag 1 AND tag 2) OR (tag 5)"),
        (Filter(tags=[TagGroup(tags=[1, -2])]), "tag 1 AND tag -2"),
        (Filter(not_tags=[TagGroup(tags=[1])]), "NOT tag 1"),
        (Filter(not_tags=[TagGroup(tags=[1, 2])]), "NOT (tag 1 AND tag 2)"),
        (Filter(not_stags=[StagGroup(stags=["a"]), StagGroup(stags=["b"])]), 'NOT ((stag "a") OR (stag "b"))'),
        (Filter(stags=[StagGroup(stags=["vip", "news"])]), 'stag "vip" AND stag "news"'),
        (clause("北京市"), "region in 北京市"),
        (clause("北京市", "上海市"), "region in [北京市, 上海市]"),
        (clause("1.2", attribute=Attribute.ATTRIBUTE_APP_VERSION, negated=True), "app_version not in 1.2"),
        (clause("x", attribute=99), "unknown_99 in x"),  # type: ignore[arg-type]
        (
            Filter(activity=[ActivityClause(days=7, comparison=Comparison.COMPARISON_GREATER_OR_EQUAL, opens=3)]),
            "opens in 7 days >= 3",
        ),
        (
            Filter(activity=[ActivityClause(days=1, comparison=Comparison.COMPARISON_LESS, opens=1)]),
            "opens in 1 day < 1",
        ),
        (
            Filter(models=[ModelClause(pairs=[BrandModel(brand="Xiaomi", model="Mi 9")], negated=True)]),
            "model not in Xiaomi Mi 9",
        ),
        (
            Filter(models=[ModelClause(pairs=[BrandModel(brand="Xiaomi", model="Mi 9")], brands=["Acme"])]),
            "model in [Xiaomi Mi 9, any Acme]",
        ),
        (
            Filter(
                tags=[TagGroup(tags=[1, 2]), TagGroup(tags=[5])],
                not_stags=[StagGroup(stags=["news"])],
                attributes=[AttributeClause(attribute=REGION, values=["北京市"])],
            ),
            '(tag 1 AND tag 2) OR (tag 5), NOT stag "news", region in 北京市',
        ),
    ],
)
def test_filters(rule: Filter, text: str) -> None:
    assert audience_text(audience_summary(Audience(filter=rule))) == text


@pytest.mark.parametrize(
    ("audience", "text"),
    [
        (Audience(everyone=Everyone()), "everyone"),
        (Audience(devices=Devices(numbers=b"\1\0\0\0")), "1 device"),
        (Audience(tokens=Tokens(tokens=["a", "b"])), "2 tokens"),
        (Audience(aliases=Aliases(aliases=["a"], all_devices=True)), "1 alias, all their devices"),
        (Audience(aliases=Aliases(aliases=["a", "b"])), "2 aliases, the latest device of each"),
        (Audience(), "unknown"),
    ],
)
def test_other_audiences(audience: Audience, text: str) -> None:
    assert audience_text(audience_summary(audience)) == text


@pytest.mark.parametrize(
    "audience",
    [
        Audience(everyone=Everyone()),
        Audience(filter=Filter()),
        Audience(filter=Filter(tags=[TagGroup(tags=[1])])),
        Audience(devices=Devices()),
        Audience(aliases=Aliases(aliases=["a"], all_devices=True)),
    ],
)
def test_the_store_keeps_what_an_audience_is_made_of(audience: Audience) -> None:
    summary = audience_summary(audience)
    assert read_summary(stored_summary(summary), audience.filter.SerializeToString()) == summary
