"""POST /v2/push in the v2 door's document."""

from typing import Annotated, Literal

import msgspec

from edge.openapi import kinds
from edge.openapi.document import SIGN_TEXT, Operation, Refusal
from edge.openapi.schema import completed, one_of
from edge.openapi.v2_push_examples import EXAMPLES
from edge.v2.push import click, requests, style, targets

_Some = msgspec.Meta(min_length=1)
_Tags = one_of(list[Annotated[list[targets.Tag], _Some]], list[targets.Tag], None)
_Stags = one_of(list[Annotated[list[kinds.Name], _Some]], list[kinds.Name], None)
_TokensByApp = Annotated[dict[kinds.IosAppkey, kinds.Token | kinds.AnyTokens], msgspec.Meta(min_length=1)]
_CLICKS = (click.InformationFlow, click.PopUp, click.RichMedia, click.LandingPage)


class Appkeys(msgspec.Struct):
    """The apps, by platform."""

    android: kinds.AndroidAppkey | None = None
    ios: kinds.IosAppkey | kinds.IosApps | None = None


class FailedToken(msgspec.Struct, forbid_unknown_fields=True):
    msgid: kinds.MessageId
    result: Literal[401]
    pos: kinds.Position
    token: str
    desc: str


class Sent(msgspec.Struct, forbid_unknown_fields=True):
    """What became of the push to one app."""

    result: Literal[0]
    desc: str
    id: kinds.MessageId
    not_found: list[str] | msgspec.UnsetType = msgspec.UNSET
    details: list[FailedToken] | msgspec.UnsetType = msgspec.UNSET
    task_key: str | msgspec.UnsetType = msgspec.UNSET


class NotSent(msgspec.Struct, forbid_unknown_fields=True):
    """The only token that was named for this app is unknown."""

    result: Literal[401]
    desc: str
    task_key: str | msgspec.UnsetType = msgspec.UNSET


class SentToApps(Sent, forbid_unknown_fields=True, kw_only=True):
    """The answer when the iOS apps were given as a list, and are all."""

    ios: list[one_of(Sent, NotSent)]  # type: ignore[valid-type]


class SentToPlatforms(msgspec.Struct, forbid_unknown_fields=True):
    """The answer when the push goes to both platforms; `ios` is a list where the apps were given as one."""

    result: Literal[0]
    android: one_of(Sent, NotSent)  # type: ignore[valid-type]
    ios: one_of(Sent, NotSent, list[one_of(Sent, NotSent)])  # type: ignore[valid-type]
    task_key: str | msgspec.UnsetType = msgspec.UNSET


_Android = completed(style.Android, click_param=one_of(str, *_CLICKS, None))
_MsgStyle = completed(
    style.MsgStyle,
    basic=completed(
        style.Basic,
        content=kinds.Given | completed(style.ContentByPlatform, android=kinds.Given | None, ios=kinds.Given | None),
    ),
    android=_Android | None,
    ios=style.Ios | None,
)
_SendTo = completed(
    targets.SendTo,
    tag=_Tags,
    not_tag=_Tags,
    stag=_Stags,
    not_stag=_Stags,
    alias=kinds.Name | kinds.Aliases | None,
    token=completed(
        targets.TokenTargets,
        android=kinds.Token | kinds.AnyTokens | None,
        ios=kinds.Token | kinds.AnyTokens | _TokensByApp | None,
    )
    | None,
    optfilter=completed(targets.OptFilters, android=kinds.DeviceFilter | None) | None,
    appkey=Appkeys,
)
_Option = completed(
    requests.Option,
    send_time=kinds.Minute | None,
    send_time_interval=Annotated[int, msgspec.Meta(ge=1, le=requests.MAX_AHEAD_S)] | None,
)
_PushRequest = completed(
    requests.PushBody, "PushRequest", send_to=_SendTo, style=_MsgStyle, option=_Option | None, sign=kinds.Sign
)

OPERATION = Operation(
    "post",
    "/v2/push",
    "Send a push to one or both platforms, now or later",
    _PushRequest,
    (Sent, SentToApps, SentToPlatforms, Refusal),
    EXAMPLES,
    repeatable=True,
)
PARTS = (*_CLICKS, FailedToken, NotSent)
TEXTS = {
    **kinds.DEVICE_FILTER_TEXTS,
    "PushRequest.sendTo": "Who gets it.",
    "PushRequest.msgStyle": f"What is shown, or handed to the app. {kinds.APPLE_LIMIT}",
    "PushRequest.option": "How and when it is sent.",
    "PushRequest.extra": "Free text that goes along.",
    "PushRequest.sign": SIGN_TEXT + " of the apps: Android, then iOS in the order of the appkeys.",
    "Appkeys.android": "The Android app. Ignored with userScope 2.",
    "Appkeys.ios": "The iOS app, or a list of them. Ignored with userScope 1, 7 and 8.",
    "SendTo.appkey": "The apps. userScope 0 needs both platforms.",
    "SendTo.userScope": "0 everyone on both platforms; 1 everyone on Android, 2 on iOS; 3 the most recently active"
    " device of each alias, 4 all of its devices; 5 tokens; 6 tags or string tags; 7 device attributes (Android);"
    " 8 tags and device attributes (Android). The other fields are read where the scope needs them.",
    "SendTo.tag": "Groups of number tags: a device has all tags of at least one group. A flat list is one group.",
    "SendTo.not_tag": "As tag, excluded.",
    "SendTo.stag": "Groups of string tags; not beside tag or not_tag.",
    "SendTo.not_stag": "As stag, excluded.",
    "SendTo.alias": "One alias or a list; not beside a filter.",
    "SendTo.token": "Tokens by platform; not beside a filter.",
    "SendTo.optfilter": "Device attributes, for Android.",
    "TokenTargets.android": "A token or a list. Each entry is sent to, a repeated one again.",
    "TokenTargets.ios": "As android; where the iOS apps are a list, an object from appkey to token or list.",
    "OptFilters.android": "The filter; all of its options must hold.",
    "MsgStyle.basic": "What both platforms need.",
    "MsgStyle.android": "How Android shows it.",
    "MsgStyle.ios": "How iOS shows it.",
    "Basic.content": "The content, for both platforms or for each.",
    "Basic.is_notif": "1: a notification; 0: handed to the app alone. For both platforms or for each.",
    "ContentByPlatform.android": "Needed when the push goes to Android.",
    "ContentByPlatform.ios": "Needed when the push goes to iOS.",
    "NotifByPlatform.android": "Needed when the push goes to Android.",
    "NotifByPlatform.ios": "Needed when the push goes to iOS.",
    "Android.sound": "Play a sound; false unless given.",
    "Android.vibrate": "Vibrate; false unless given.",
    "Android.unremovable": "true: the user can remove the notification; false unless given.",
    "Android.title": "The app's name unless given.",
    "Android.click_action": "What a click does: 0 nothing, 1 open the app, 2 a URL, 3 an intent, 4 a landing page,"
    " 5 a pop-up, 6 an information flow, 7 a rich-media URL; 0 unless given.",
    "Android.click_param": "What the action needs: nothing for 0 and 1, text for 2 and 3, an object for the others.",
    "Android.badge": "The number at the app's icon; -1 adds one.",
    "Ios.sound": "The name of a sound file; the default sound unless given.",
    "Ios.content-available": "1 wakes the app in the background.",
    "Ios.category": "Custom actions.",
    "Ios.badge": "The number at the app's icon; -1 adds one.",
    "Option.period": "How long it is kept for devices that are away, seconds; absent or 0: the app's own.",
    "Option.qps": "Messages a second; absent or 0: as fast as can be.",
    "Option.timed": "0 now, 1 at send_time, 2 after send_time_interval; 0 unless given.",
    "Option.send_time": "A minute in the service's time zone, within 365 days; with timed 1.",
    "Option.send_time_interval": "Seconds from now; with timed 2.",
    "LandingPage.picture-addr": "The picture, at most 500 KB.",
    "LandingPage.picture-hyperlink": "Where the picture leads.",
    "LandingPage.jump-button": "1 adds a button that skips the page.",
    "LandingPage.jump-seconds": "The page goes by itself after so many seconds.",
    "LandingPage.tip-content": "A tip; needs tip-url.",
    "LandingPage.tip-url": "Where the tip leads.",
    "LandingPage.download-condition": "1: download over Wi-Fi only.",
    "PopUp.popup-mode": "1 a single picture, 2 picture and text with a title.",
    "PopUp.picture-addr": "The picture, at most 500 KB.",
    "PopUp.title": "Needed in mode 2.",
    "PopUp.picture-hyperlink": "Where the picture leads.",
    "PopUp.tip-content": "A tip.",
    "PopUp.tip-url": "Where the tip leads.",
    "PopUp.download-condition": "1: download over Wi-Fi only.",
    "InformationFlow.flow-mode": "1 single article, 2 several.",
    "InformationFlow.information": "The entries.",
    "InformationFlow.top-title": "Above all entries.",
    "InformationFlow.download-condition": "1: download over Wi-Fi only.",
    "Article.title": "Its title.",
    "Article.picture-addr": "Its picture, at most 500 KB.",
    "Article.text-abstract": "A summary; needed in mode 1.",
    "Article.text-detail": "The text.",
    "RichMedia.url": "The rich-media URL.",
    "FailedToken.msgid": "The id its message would have had.",
    "FailedToken.result": "Always 401.",
    "FailedToken.pos": "Its place in the list, from 0.",
    "FailedToken.token": "The token.",
    "FailedToken.desc": "token not found",
    **{
        f"{name}.{field}": text
        for name in ("Sent", "SentToApps")
        for field, text in {
            "result": "Accepted, and not lost any more.",
            "desc": "In words.",
            "id": "The message's id. Entries of a token list have ids of their own: this plus their place.",
            "not_found": "Aliases without a device; with userScope 3 and 4.",
            "details": "Tokens that failed; with userScope 5 on Android.",
            "task_key": "Names a timed push.",
        }.items()
    },
    "SentToApps.ios": "One entry for each app.",
    "NotSent.result": "Always 401.",
    "NotSent.desc": "token not found",
    "NotSent.task_key": "Names a timed push.",
    "SentToPlatforms.result": "Accepted, and not lost any more.",
    "SentToPlatforms.android": "What became of it on Android.",
    "SentToPlatforms.ios": "What became of it on iOS.",
    "SentToPlatforms.task_key": "Names a timed push; one key for both platforms.",
}
