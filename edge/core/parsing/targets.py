"""Targets in requests: the device-attribute filter (`optfilter`), and keys that must not be misspelt."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Annotated, Any

import msgspec

from edge.core.parsing.fields import Shown, described
from edge.core.parsing.typed import ABSENT, decode
from protos.push.v1.push_pb2 import (
    ActivityClause,
    Attribute,
    AttributeClause,
    BrandModel,
    Comparison,
    Filter,
    ModelClause,
)
from services.domain.limits import MAX_VALUES, check_count
from services.domain.regions import REGIONS
from services.errors import Code, InputError

_SOME = msgspec.Meta(min_length=1, max_length=MAX_VALUES)
OpenCount = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]
Text = Annotated[str, msgspec.Meta(min_length=1)]
Texts = Annotated[list[Text], _SOME]
Opens = Annotated[dict[str, OpenCount], msgspec.Meta(min_length=1, max_length=MAX_VALUES)]
Pairs = Annotated[dict[Text, Text | Texts], _SOME]
PairLists = Annotated[list[Pairs], _SOME]

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

_Region = Annotated[str, msgspec.Meta(extra_json_schema={"enum": sorted(REGIONS)})]
_Regions = Annotated[Texts | None, Shown(Annotated[list[_Region], _SOME] | None)]
_Comparison = Annotated[str, msgspec.Meta(extra_json_schema={"enum": [">", "<", ">=", "<=", "="]})]
_Comparisons = Annotated[
    Opens | None, Shown(Annotated[dict[_Comparison, OpenCount], msgspec.Meta(min_length=1)] | None)
]


def _opens(days: int, example: dict[str, int]) -> msgspec.Meta:
    window = f"the last {days * 24:,} hours, counted in whole hours"
    return described(f"Number of app opens in {window}, compared with numbers.", example)


class PositiveOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The options that every interface has: no negated ones, and no models."""

    locate: Annotated[_Regions, described("Regions.", ["北京市"])] = None
    osversion: Annotated[Texts | None, described("Versions of the operating system.", ["14"])] = None
    appversion: Annotated[Texts | None, described("Versions of the app.", ["2.1"])] = None
    channel: Annotated[Texts | None, described("Channels that the app was installed from.", ["store"])] = None
    phone: Annotated[Texts | None, described("Brands.", ["brand"])] = None
    operator: Annotated[Texts | None, described("Carriers: cm, ct, cu, or another carrier's own name.", ["cm"])] = None
    activity_1: Annotated[_Comparisons, _opens(1, {">=": 1})] = None
    activity_7: Annotated[_Comparisons, _opens(7, {">": 2, "<": 50})] = None
    activity_30: Annotated[_Comparisons, _opens(30, {"<=": 100})] = None
    activity_90: Annotated[_Comparisons, _opens(90, {"=": 60})] = None


class DeviceFilter(PositiveOptions, frozen=True, forbid_unknown_fields=True):
    locate_not: Annotated[_Regions, described("All regions except these.", ["西藏自治区"])] = None
    osversion_not: Annotated[Texts | None, described("Devices with any other value.", ["9"])] = None
    appversion_not: Annotated[Texts | None, described("Devices with any other value.", ["1.0"])] = None
    channel_not: Annotated[Texts | None, described("Devices with any other value.", ["test"])] = None
    phone_not: Annotated[Texts | None, described("All brands except these.", ["other"])] = None
    operator_not: Annotated[Texts | None, described("All carriers except these.", ["ct"])] = None
    model: Annotated[
        PairLists | Pairs | None,
        described(
            "Models by brand: an object from brand to a model or a list of models, or a list of such objects. Beside"
            " phone it narrows the brands that both name; phone's other brands are chosen with all their models.",
            {"brand": ["one", "two"]},
        ),
    ] = None
    model_not: Annotated[
        PairLists | Pairs | None,
        described(
            "All models except these; beside phone_not only these of a brand that both name.", [{"brand": "old"}]
        ),
    ] = None


def read(raw: msgspec.Raw, at: str) -> Filter:
    """Decode the filter; `at` is its path in the request. InputError: no option, an unknown one, or a wrong value."""
    options: DeviceFilter = decode(DeviceFilter, raw, at)
    if all(getattr(options, name) is None for name in options.__struct_fields__):
        raise InputError(f"{at} must name at least one option")
    _check_regions(options, at)
    brands, models = zip(*(_brands_and_models(options, negated, at) for negated in (False, True)), strict=True)
    return Filter(
        attributes=[
            AttributeClause(attribute=attribute, values=values, negated=negated)
            for name, attribute in _ATTRIBUTES.items()
            for negated in (False, True)
            if (values := brands[negated] if name == "phone" else _value(options, name, negated))
        ],
        models=[clause for clause in models if clause is not None],
        activity=[clause for days in _DAYS for clause in _activity(options, days, at)],
    )


def _value(options: DeviceFilter, name: str, negated: bool) -> Any:
    return getattr(options, f"{name}_not" if negated else name)


def _brands_and_models(options: DeviceFilter, negated: bool, at: str) -> tuple[Sequence[str], ModelClause | None]:
    """Return the brands for a clause of their own, and the clause of models.

    A brand in both options stands for its named models only; any other brand stands for all its models. Such brands
    get the own clause if negated; otherwise they join the clause of models, because clauses are ANDed.
    """
    brands: Sequence[str] = _value(options, "phone", negated) or ()
    given = _value(options, "model", negated)
    pairs = _pairs(given, at) if given else []
    named, compared = {pair.brand for pair in pairs}, frozenset(brands)
    others = [brand for brand in brands if brand not in named]
    if negated:
        return others, ModelClause(pairs=pairs, negated=True) if pairs else None
    if brands:
        pairs = [pair for pair in pairs if pair.brand in compared]
    return (brands, None) if not pairs else ((), ModelClause(pairs=pairs, brands=others))


def _check_regions(options: DeviceFilter, at: str) -> None:
    for name in ("locate", "locate_not"):
        for index, region in enumerate(getattr(options, name) or ()):
            if region not in REGIONS:
                raise InputError(Code.UNKNOWN_REGION, at=f"{at}.{name}[{index}]", region=region)


def _pairs(given: PairLists | Pairs, at: str) -> list[BrandModel]:
    """Return the pairs. InputError: they are more than a filter may have in all."""
    objects = given if isinstance(given, list) else [given]
    count = sum(1 if isinstance(models, str) else len(models) for pairs in objects for models in pairs.values())
    check_count(count, at)
    return [
        BrandModel(brand=brand, model=model)
        for pairs in objects
        for brand, models in pairs.items()
        for model in ([models] if isinstance(models, str) else models)
    ]


def _activity(options: DeviceFilter, days: int, at: str) -> list[ActivityClause]:
    compared: Opens = getattr(options, f"activity_{days}") or {}
    for operator in compared:
        if operator not in _COMPARISONS:
            raise InputError(f"{at}.activity_{days} must compare with one of >, <, >=, <=, =, not with {operator}")
    return [
        ActivityClause(days=days, comparison=_COMPARISONS[operator], opens=opens)
        for operator, opens in compared.items()
    ]


# The keys by which a push names its targets: a null one, or a misspelt one, must not reach every device.

MAX_UNKNOWN = 1000
"""Upper bound of the unknown keys beside the targets: each is compared with the targets."""


def check_misspelt(given: Iterable[str], known: Collection[str], targets: Sequence[str], at: str = "") -> None:
    """Check that no unknown key is a misspelt target.

    InputError: an unknown key differs from one of `targets` only by its case, a plural s, or one letter; or there are
    too many unknown keys.

    `known`: all keys of the object that holds the targets; `at`: the path of that object, with a dot.
    """
    longest = max(map(len, targets)) + len("es")
    unknown = [key for key in given if key not in known]
    if len(unknown) > MAX_UNKNOWN:
        raise InputError(f"{at.rstrip('.') or 'the body'} has more than {MAX_UNKNOWN} fields that are not known")
    for key in unknown:
        if len(key) <= longest and (meant := _meant(key.lower(), targets)):
            raise InputError(f"{at}{key} is not known; the field is {at}{meant}")


def check_top(raw: bytes, known: Collection[str], targets: Sequence[str]) -> Mapping[str, msgspec.Raw]:
    """Return the fields at the top of a body. InputError: their keys, as `check_misspelt`, or a target is null."""
    given: dict[str, msgspec.Raw] = decode(dict[str, msgspec.Raw], raw)
    check_misspelt(given, known, targets)
    for target in targets:
        if target in given and given[target] == ABSENT:
            raise InputError(f"{target} must not be null: name whom the push is for, or leave the field out")
    return given


def _meant(key: str, targets: Sequence[str]) -> str | None:
    """Return the target that a lower-case key stands for. Another style or a plural comes before other slips."""
    bare = _without_dashes(key)
    for target in targets:
        if _without_dashes(target) in (bare, bare.removesuffix("s"), bare.removesuffix("es")):
            return target
    return next((target for target in targets if _is_one_letter_off(key, target)), None)


def _without_dashes(key: str) -> str:
    return key.replace("_", "").replace("-", "")


def _is_one_letter_off(key: str, target: str) -> bool:
    """Whether one letter is changed, added or missing."""
    same = next((place for place, pair in enumerate(zip(key, target, strict=False)) if pair[0] != pair[1]), None)
    if same is None:
        return abs(len(key) - len(target)) == 1
    return target[same + 1 :] in (key[same + 1 :], key[same:]) or key[same + 1 :] == target[same:]
