"""Bodies of the legacy iOS interface, with their limits and descriptions.

Fields that are not named here are ignored, unless they look like a misspelt target; null counts as absent, except that
a target must not be null.
"""

from typing import Annotated, Any

import msgspec

from edge.core.parsing.fields import (
    APNS_LIMIT,
    AnyIosToken,
    Badge,
    Flag,
    IosAppkey,
    IosToken,
    Period,
    Sign,
    described,
    sign_of,
)

Tokens = Annotated[list[AnyIosToken], msgspec.Meta(min_length=1)]
Dictionary = Annotated[dict[str, Any], msgspec.Meta(min_length=1)]


class Signed(msgspec.Struct, frozen=True):
    """The fields of every request that authentication reads."""

    appkey: Annotated[IosAppkey, described("The app. A number is accepted too.")]
    sign: Annotated[Sign, sign_of("the app's secret")]


class PushBody(msgspec.Struct, frozen=True):
    """POST /push. `extra`, `transparent` and `content-available` have no effect when `token` is a single one."""

    message: Annotated[
        str | Dictionary,
        described(
            "The content: text, or a dictionary in the form of Apple's alert. Empty text with a `badge` changes"
            f" the badge alone. {APNS_LIMIT}",
            {"title": "News", "body": "Your order is on its way"},
        ),
    ]
    token: Annotated[
        IosToken | Tokens | None,
        described("A token, which must be registered, or a list of tokens. Default: all devices."),
    ] = None
    period: Annotated[
        Period | None,
        described("Time to live for devices that are offline, seconds. Default: the app's own setting.", 86400),
    ] = None
    badge: Annotated[Badge | None, described("The number at the app's icon.", 3)] = None
    extra: Annotated[str | None, described("Free text that is sent along; not to a single token.", "campaign-7")] = None
    transparent: Annotated[
        Flag | None, described("1: passed to the app without showing it; not to a single token.", 0)
    ] = None
    content_available: Annotated[
        Flag | None, described("1 wakes the app in the background; not for a single token.", 1)
    ] = msgspec.field(name="content-available", default=None)
    category: Annotated[str | None, described("The category of custom actions.", "NEWS")] = None


class RegistrationBody(msgspec.Struct, frozen=True):
    """POST and DELETE /register."""

    token: Annotated[
        IosToken,
        described("The device token that APNs gave: 64 to 200 hexadecimal digits; spaces, < and > are left out."),
    ]
