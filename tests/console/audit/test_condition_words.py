"""Filters, their conditions, and the values that a device had for them, in words of the reader's language."""

import pytest

from console.shell.languages import Languages
from protos.analytics.v1.analytics_pb2 import Clause, FoundValues
from protos.push.v1.push_pb2 import (
    ActivityClause,
    Attribute,
    AttributeClause,
    BrandModel,
    Comparison,
    Filter,
    ModelClause,
    StagGroup,
    TagGroup,
)

TAGS = Filter(tags=[TagGroup(tags=[1, 2]), TagGroup(tags=[5])])
NOT_TAG = Filter(not_tags=[TagGroup(tags=[1])])
STAG = Filter(stags=[StagGroup(stags=["vip, 100% wool"])])
NOT_STAGS = Filter(not_stags=[StagGroup(stags=["a", "b"])])
REGION = Filter(attributes=[AttributeClause(attribute=Attribute.ATTRIBUTE_REGION, values=["北京市", "上海市"])])
VERSION = Filter(
    attributes=[AttributeClause(attribute=Attribute.ATTRIBUTE_APP_VERSION, values=["1 in 2"], negated=True)]
)
MODELS = Filter(models=[ModelClause(pairs=[BrandModel(brand="Xiaomi", model="Mi 9")], brands=["Acme"])])
OPENS = Filter(activity=[ActivityClause(days=7, comparison=Comparison.COMPARISON_GREATER_OR_EQUAL, opens=3)])
ONE_DAY = Filter(activity=[ActivityClause(days=1, comparison=Comparison.COMPARISON_LESS, opens=1)])


def merged(*rules: Filter) -> Filter:
    joined = Filter()
    for rule in rules:
        joined.MergeFrom(rule)
    return joined


@pytest.mark.parametrize(
    ("rule", "english", "chinese"),
    [
        (Filter(), "all devices", "所有设备"),
        (TAGS, "(tag 1 and tag 2) or (tag 5)", "(标签 1 且 标签 2) 或 (标签 5)"),
        (NOT_TAG, "not tag 1", "不满足：标签 1"),
        (STAG, 'string tag "vip, 100% wool"', "字符串标签“vip, 100% wool”"),
        (NOT_STAGS, 'not (string tag "a" and string tag "b")', "不满足：(字符串标签“a” 且 字符串标签“b”)"),
        (REGION, "region in [北京市, 上海市]", "地区 属于 [北京市, 上海市]"),
        (VERSION, "app version not in 1 in 2", "应用版本 不属于 1 in 2"),
        (MODELS, "model in [Xiaomi Mi 9, any Acme]", "型号 属于 [Xiaomi Mi 9, Acme 的任何型号]"),
        (OPENS, "app opens in 7 days ≥ 3", "7 天内打开应用的次数 ≥ 3"),
        (ONE_DAY, "app opens in 1 day < 1", "1 天内打开应用的次数 < 1"),
        (
            merged(NOT_TAG, VERSION, OPENS),
            "not tag 1, app version not in 1 in 2, app opens in 7 days ≥ 3",
            "不满足：标签 1, 应用版本 不属于 1 in 2, 7 天内打开应用的次数 ≥ 3",
        ),
    ],
)
def test_every_condition_of_a_filter_is_in_the_readers_language(rule: Filter, english: str, chinese: str) -> None:
    languages = Languages()
    assert languages.chosen("en", "").conditions.filter(rule) == english
    assert languages.chosen("zh", "").conditions.filter(rule) == chinese


@pytest.mark.parametrize(
    ("rule", "had", "english", "chinese"),
    [
        (TAGS, FoundValues(tags=[-2, 7]), "tag -2, tag 7", "标签 -2, 标签 7"),
        (NOT_TAG, FoundValues(), "no tags", "没有标签"),
        (STAG, FoundValues(), "no string tags", "没有字符串标签"),
        (NOT_STAGS, FoundValues(stags=["a"]), 'string tag "a"', "字符串标签“a”"),
        (REGION, FoundValues(attribute="广东省"), "region 广东省", "地区 广东省"),
        (VERSION, FoundValues(), "app version unknown", "应用版本 未知"),
        (MODELS, FoundValues(brand="Acme"), "model Acme unknown", "型号 Acme 未知"),
        (MODELS, FoundValues(), "model unknown", "型号 未知"),
        (OPENS, FoundValues(opens=2), "2 app opens", "打开应用 2 次"),
        (ONE_DAY, FoundValues(opens=1), "1 app open", "打开应用 1 次"),
    ],
)
def test_what_the_device_had_is_in_the_readers_language(
    rule: Filter, had: FoundValues, english: str, chinese: str
) -> None:
    languages = Languages()
    clause = Clause(text="recorded", found="recorded", filter=rule, found_values=had)
    assert languages.chosen("en", "").conditions.found(clause) == english
    assert languages.chosen("zh", "").conditions.found(clause) == chinese


def test_a_condition_from_analytics_of_an_older_version_is_shown_as_recorded() -> None:
    conditions = Languages().chosen("zh", "").conditions
    clause = Clause(text="region in 北京市", found="region 上海市")
    assert (conditions.condition(clause), conditions.found(clause)) == ("region in 北京市", "region 上海市")
