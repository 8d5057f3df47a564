"""The device-attribute filter, `optfilter`: its options are ANDed, the values inside one are ORed."""

from typing import Annotated, Any

import msgspec

from edge.core.parsing.regions import REGIONS
from edge.core.parsing.typed import decode
from protos.push.v1.push_pb2 import (
    ActivityClause,
    Attribute,
    AttributeClause,
    BrandModel,
    Comparison,
    Filter,
    ModelClause,
)
from services.runtime.errors import InputError

Text = Annotated[str, msgspec.Meta(min_length=1)]
Texts = Annotated[list[Text], msgspec.Meta(min_length=1)]
Opens = Annotated[dict[str, Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]], msgspec.Meta(min_length=1)]
Pairs = Annotated[dict[Text, Text | Texts], msgspec.Meta(min_length=1)]
PairLists = Annotated[list[Pairs], msgspec.Meta(min_length=1)]

_COMPARISONS = {
    ">": Comparison.COMPARISON_GREATER,
    "<": Comparison.COMPARISON_LESS,
    ">=": Comparison.COMPARISON_GREATER_OR_EQUAL,
    "<=": Comparison.COMPARISON_LESS_OR_EQUAL,
    "=": Comparison.COMPARISON_EQUAL,
}
_ATTRIBUTES = {
    "locate": Attribute.ATTRIBUTE_REGION,
    "osversion": Attribute.ATTRIBUTE_OS_VERSION,
    "appversion": Attribute.ATTRIBUTE_APP_VERSION,
    "channel": Attribute.ATTRIBUTE_CHANNEL,
    "phone": Attribute.ATTRIBUTE_BRAND,
    "operator": Attribute.ATTRIBUTE_CARRIER,
}
_DAYS = (1, 7, 30, 90)


class OptFilter(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    locate: Texts | None = None
    locate_not: Texts | None = None
    osversion: Texts | None = None
    osversion_not: Texts | None = None
    appversion: Texts | None = None
    appversion_not: Texts | None = None
    channel: Texts | None = None
    channel_not: Texts | None = None
    phone: Texts | None = None
    phone_not: Texts | None = None
    operator: Texts | None = None
    operator_not: Texts | None = None
    model: PairLists | Pairs | None = None
    model_not: PairLists | Pairs | None = None
    activity_1: Opens | None = None
    activity_7: Opens | None = None
    activity_30: Opens | None = None
    activity_90: Opens | None = None


def read(raw: msgspec.Raw, at: str) -> Filter:
    """The filter in a request; `at` is its place there. InputError: no option, an unknown one, or a wrong value."""
    options: OptFilter = decode(OptFilter, raw, at)
    if all(getattr(options, name) is None for name in options.__struct_fields__):
        raise InputError(f"{at} must name at least one option")
    _check_regions(options, at)
    return Filter(
        attributes=[
            AttributeClause(attribute=attribute, values=values, negated=negated)
            for name, attribute in _ATTRIBUTES.items()
            for negated in (False, True)
            if (values := _option(options, name, negated))
        ],
        models=[
            ModelClause(pairs=_pairs(pairs), negated=negated)
            for negated in (False, True)
            if (pairs := _option(options, "model", negated))
        ],
        activity=[clause for days in _DAYS for clause in _activity(options, days, at)],
    )


def _option(options: OptFilter, name: str, negated: bool) -> Any:
    return getattr(options, f"{name}_not" if negated else name)


def _check_regions(options: OptFilter, at: str) -> None:
    for name in ("locate", "locate_not"):
        for index, region in enumerate(getattr(options, name) or ()):
            if region not in REGIONS:
                raise InputError(f"{at}.{name}[{index}] is not a known region: {region}")


def _pairs(given: PairLists | Pairs) -> list[BrandModel]:
    objects = given if isinstance(given, list) else [given]
    return [
        BrandModel(brand=brand, model=model)
        for pairs in objects
        for brand, models in pairs.items()
        for model in ([models] if isinstance(models, str) else models)
    ]


def _activity(options: OptFilter, days: int, at: str) -> list[ActivityClause]:
    compared: Opens = getattr(options, f"activity_{days}") or {}
    for operator in compared:
        if operator not in _COMPARISONS:
            raise InputError(f"{at}.activity_{days} must compare with one of >, <, >=, <=, =, not with {operator}")
    return [
        ActivityClause(days=days, comparison=_COMPARISONS[operator], opens=opens)
        for operator, opens in compared.items()
    ]
