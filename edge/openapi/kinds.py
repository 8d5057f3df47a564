"""Types of fields that the doors decode later or check by code, and that more than one document shows.

The formats are this project's own: they tell what kind of thing a text names.
"""

from typing import Annotated, Any

import msgspec

from edge.android.audience import OPTIONS
from edge.core.parsing.optfilter import OptFilter
from edge.core.parsing.regions import REGIONS
from edge.openapi.schema import completed
from edge.v2.apps import MAX_APPS
from services.domain.apns.payload import MAX_PAYLOAD_BYTES

NAME_BYTES = 40
LIST_LIMIT = 1000
APPLE_LIMIT = (
    "Content, extra and style together make the JSON that an iOS device is sent;"
    f" more than {MAX_PAYLOAD_BYTES} bytes of it are refused."
)


def text(kind: str) -> msgspec.Meta:
    return msgspec.Meta(min_length=1, extra_json_schema={"format": kind})


AndroidAppkey = Annotated[str, text("appkey-android")]
IosAppkey = Annotated[str, text("appkey-ios")]
Token = Annotated[str, text("token")]
IosApps = Annotated[
    list[IosAppkey], msgspec.Meta(min_length=1, max_length=MAX_APPS, extra_json_schema={"uniqueItems": True})
]
TaskKey = Annotated[str, text("task-key")]
Sign = Annotated[str, text("sign")]
Given = Annotated[str, msgspec.Meta(min_length=1)]
Name = Annotated[str, msgspec.Meta(min_length=1, extra_json_schema={"x-maxBytes": NAME_BYTES})]
"""An alias or a string tag."""

AnyToken = Annotated[str, msgspec.Meta(extra_json_schema={"format": "token"})]
"""An entry of a list: one that names nothing, as an empty text does, is answered as an unknown one."""

AnyTokens = Annotated[list[AnyToken], msgspec.Meta(min_length=1, max_length=LIST_LIMIT)]
Tokens = Annotated[list[Token], msgspec.Meta(min_length=1, max_length=LIST_LIMIT)]
Aliases = Annotated[list[Name], msgspec.Meta(min_length=1, max_length=LIST_LIMIT)]
Minute = Annotated[
    str, msgspec.Meta(pattern=r"^\d{4}-\d{2}-\d{2} \d{2}:\d{2}$", extra_json_schema={"format": "minute"})
]
Date = Annotated[str, msgspec.Meta(pattern=r"^\d{4}-\d{2}-\d{2}$", extra_json_schema={"format": "date"})]
MessageId = Annotated[int, msgspec.Meta(ge=1, lt=2**53)]
Position = Annotated[int, msgspec.Meta(ge=0)]

_Operator = Annotated[str, msgspec.Meta(extra_json_schema={"enum": [">", "<", ">=", "<=", "="]})]
_Opens = Annotated[dict[_Operator, Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]], msgspec.Meta(min_length=1)]
_Region = Annotated[str, msgspec.Meta(extra_json_schema={"enum": sorted(REGIONS)})]
_Regions = Annotated[list[_Region], msgspec.Meta(min_length=1)]
ACTIVITY = ("activity_1", "activity_7", "activity_30", "activity_90")

_FILTER_KINDS: dict[str, Any] = {
    **dict.fromkeys(("locate", "locate_not"), _Regions | None),
    **dict.fromkeys(ACTIVITY, _Opens | None),
}
DeviceFilter = completed(OptFilter, "DeviceFilter", **_FILTER_KINDS)
LegacyDeviceFilter = completed(
    OptFilter,
    "DeviceFilter",
    only=OPTIONS,
    **{name: kind for name, kind in _FILTER_KINDS.items() if name in OPTIONS},
)
DEVICE_FILTER_TEXTS = {
    **{f"DeviceFilter.{name}_not": "Devices with any other value." for name in ("osversion", "appversion", "channel")},
    "DeviceFilter.locate": "Regions.",
    "DeviceFilter.locate_not": "Everywhere but in these regions.",
    "DeviceFilter.osversion": "Versions of the operating system.",
    "DeviceFilter.appversion": "Versions of the app.",
    "DeviceFilter.channel": "Channels the app was installed from.",
    "DeviceFilter.phone": "Brands.",
    "DeviceFilter.phone_not": "All brands but these.",
    "DeviceFilter.operator": "Carriers: cm, ct, cu, or a carrier's own name where it is none of them.",
    "DeviceFilter.operator_not": "All carriers but these.",
    "DeviceFilter.model": "Brand to model, or to a list of models; several such objects may stand in a list.",
    "DeviceFilter.model_not": "As model: all models but these.",
    **{f"DeviceFilter.{name}": f"App opens in {name[9:]} days, today included, compared." for name in ACTIVITY},
}
LEGACY_DEVICE_FILTER_TEXTS = {
    place: text for place, text in DEVICE_FILTER_TEXTS.items() if place.partition(".")[2] in OPTIONS
}
