"""msgStyle of a v2 push: the message of each platform and the click, with limits and descriptions of the fields."""

from typing import Annotated, Any, Literal

import msgspec

from edge.core.parsing import typed
from edge.core.parsing.fields import Badge, Flag, NotEmpty, Shown, check_payload, described
from edge.core.parsing.typed import ABSENT, decode
from protos.push.v1.push_pb2 import AndroidStyle, IosStyle, Message
from services.errors import Code, InputError

# The click on an Android notification: click_action and its click_param.

Tip = Annotated[str, msgspec.Meta(max_length=10)]
Title = Annotated[str, msgspec.Meta(max_length=15)]
Summary = Annotated[str, msgspec.Meta(max_length=100)]
Seconds = Annotated[int, msgspec.Meta(ge=1, le=60)]

LAST_ACTION = 7
_WITHOUT_PARAM = (0, 1)
_WITH_TEXT = (2, 3)


_Picture = Annotated[NotEmpty, described("The picture, at most 500 KB.", "https://example.org/p.png")]
_PictureLink = Annotated[str | None, described("The picture's link target.", "https://example.org/")]
_TipUrl = Annotated[str | None, described("The tip's link target.", "https://example.org/tip")]
_OnWifiOnly = Annotated[Flag | None, described("1: download over Wi-Fi only; 0 (default): always.", 1)]


class LandingPage(msgspec.Struct, frozen=True, rename="kebab"):
    picture_addr: _Picture
    picture_hyperlink: _PictureLink = None
    jump_button: Annotated[Flag | None, described("1 adds a button that skips the page; 0 (default): none.", 1)] = None
    jump_seconds: Annotated[Seconds | None, described("The page closes by itself after this many seconds.", 5)] = None
    tip_content: Annotated[Tip | None, described("A tip; needs tip-url.", "More")] = None
    tip_url: _TipUrl = None
    download_condition: _OnWifiOnly = None

    def check(self, at: str) -> None:
        if self.tip_content and not self.tip_url:
            raise InputError(Code.NEEDED, at=f"{at}.tip-url", by="tip-content")


class PopUp(msgspec.Struct, frozen=True, rename="kebab"):
    popup_mode: Annotated[Literal[1, 2], described("1 a single picture, 2 picture and text with a title.", 2)]
    picture_addr: _Picture
    title: Annotated[Title | None, described("Required in mode 2.", "Sale")] = None
    picture_hyperlink: _PictureLink = None
    tip_content: Annotated[Tip | None, described("A tip.", "More")] = None
    tip_url: _TipUrl = None
    download_condition: Annotated[Flag | None, described("1: download over Wi-Fi only; 0 (default): always.", 0)] = None

    def check(self, at: str) -> None:
        if self.popup_mode == 2 and not self.title:
            raise InputError(Code.NEEDED, at=f"{at}.title", by="popup-mode 2")


class Article(msgspec.Struct, frozen=True, rename="kebab"):
    title: Annotated[Title | None, described("The title.", "One")] = None
    picture_addr: Annotated[str | None, described("The picture, at most 500 KB.", "https://example.org/1.png")] = None
    text_abstract: Annotated[Summary | None, described("A summary; required in mode 1.", "In short")] = None
    text_detail: Annotated[str | None, described("The text.", "At length")] = None


class InformationFlow(msgspec.Struct, frozen=True, rename="kebab"):
    flow_mode: Annotated[Literal[1, 2], described("1 single article, 2 several.", 1)]
    information: Annotated[list[Article], msgspec.Meta(min_length=2, max_length=7), described("The entries.")]
    top_title: Annotated[Title | None, described("The title above all entries.", "Today")] = None
    download_condition: _OnWifiOnly = None

    def check(self, at: str) -> None:
        for index, article in enumerate(self.information):
            if self.flow_mode == 1 and not article.text_abstract:
                raise InputError(Code.NEEDED, at=f"{at}.information[{index}].text-abstract", by="flow-mode 1")


class RichMedia(msgspec.Struct, frozen=True):
    url: Annotated[NotEmpty, described("The rich-media URL.", "https://example.org/rich")]

    def check(self, at: str) -> None:
        """Nothing more to check."""


_BY_ACTION: dict[int, type[LandingPage | PopUp | InformationFlow | RichMedia]] = {
    4: LandingPage,
    5: PopUp,
    6: InformationFlow,
    7: RichMedia,
}


def click_param_json(action: int, raw: msgspec.Raw, at: str) -> str:
    """Return click_param as the JSON text for devices, "" for an action without one. InputError names the field."""
    if action in _WITHOUT_PARAM:
        return ""
    if raw == ABSENT:
        raise InputError(Code.NEEDED, at=at, by=f"click_action {action}")
    if action in _WITH_TEXT:
        return msgspec.json.encode(decode(NotEmpty, raw, at)).decode()
    param = msgspec.json.encode(_with_hyphens(decode(dict[str, Any], raw, at)))
    plain = typed.rewritten(param, _BY_ACTION[action])
    decode(_BY_ACTION[action], plain, at).check(at)
    return plain.decode()


def _with_hyphens(param: dict[str, Any]) -> dict[str, Any]:
    """Accept `picture_addr`, which client samples write although all other keys have hyphens."""
    if "picture_addr" in param:
        param.setdefault("picture-addr", param.pop("picture_addr"))
    return param


_OF_ANDROID = described("Required when the push goes to Android.")
_OF_IOS = described("Required when the push goes to iOS.")


class ContentByPlatform(msgspec.Struct, frozen=True):
    android: Annotated[str | None, Shown(NotEmpty | None), _OF_ANDROID] = None
    ios: Annotated[str | None, _OF_IOS] = None


class NotifByPlatform(msgspec.Struct, frozen=True):
    android: Annotated[Flag | None, _OF_ANDROID] = None
    ios: Annotated[Flag | None, _OF_IOS] = None


class Basic(msgspec.Struct, frozen=True):
    content: Annotated[
        str | ContentByPlatform,
        described(
            "The content, for both platforms or for each. Empty for iOS alone, with a `badge`: changes the badge alone."
        ),
    ]
    is_notif: Annotated[
        Flag | NotifByPlatform,
        described("1: a notification; 0: passed to the app without showing it. For both platforms or for each."),
    ]


class Android(msgspec.Struct, frozen=True):
    sound: Annotated[bool | None, described("Play a sound. Default: false.", True)] = None
    unremovable: Annotated[
        bool | None, described("true: the user can remove the notification. Default: false.", True)
    ] = None
    title: Annotated[str | None, described("The title. Default: the app's name.", "News")] = None
    click_action: Annotated[
        Annotated[int, msgspec.Meta(ge=0, le=LAST_ACTION)] | None,
        described(
            "The action of a click: 0 (default) none, 1 open the app, 2 a URL, 3 an intent, 4 a landing page,"
            " 5 a pop-up, 6 an information flow, 7 a rich-media URL.",
            2,
        ),
    ] = None
    click_param: Annotated[
        msgspec.Raw,
        Shown(str, InformationFlow, PopUp, RichMedia, LandingPage, None),
        described(
            "The action's parameter: none for 0 and 1, text for 2 and 3, an object for the others.",
            "https://example.org/news",
        ),
    ] = ABSENT
    vibrate: Annotated[bool | None, described("Vibrate. Default: false.", True)] = None
    badge: Annotated[Badge | None, described("The number at the app's icon; -1 adds one.", -1)] = None


class Ios(msgspec.Struct, frozen=True):
    sound: Annotated[str | None, described("The name of a sound file. Default: the default sound.", "chime.caf")] = None
    content_available: Annotated[Flag | None, described("1 wakes the app in the background.", 1)] = msgspec.field(
        name="content-available", default=None
    )
    category: Annotated[str | None, described("The category of custom actions.", "NEWS")] = None
    badge: Annotated[Badge | None, described("The number at the app's icon; -1 adds one.", 3)] = None


class MsgStyle(msgspec.Struct, frozen=True):
    basic: Annotated[Basic, described("The fields of both platforms.")]
    android: Annotated[
        msgspec.Raw, Shown(Android | None), described("The style on Android; ignored where is_notif is 0.")
    ] = ABSENT
    ios: Annotated[msgspec.Raw, Shown(Ios | None), described("The style on iOS; ignored where is_notif is 0.")] = ABSENT


AndroidOrNone = Android | None
IosOrNone = Ios | None
_IOS_NAMES = {"extra": "extra", "sound": "msgStyle.ios.sound", "category": "msgStyle.ios.category"}


def android_message(style: MsgStyle, extra: str | None, app_name: str) -> Message:
    """Return the message for Android devices; a notification without a title gets the app's name as its title."""
    is_notif = _is_notif(style.basic, "android")
    content = _content(style.basic, "android")
    if not content:
        raise InputError(Code.EMPTY, at=_content_path(style.basic, "android"))
    android = _android_style(style, app_name) if is_notif else AndroidStyle()
    return Message(is_notif=is_notif, content=content, extra=extra, android=android)


def _android_style(style: MsgStyle, app_name: str) -> AndroidStyle:
    """Return the style. In v2 `unremovable` means removable if true, unlike in the legacy interface."""
    given: Android = decode(AndroidOrNone, style.android, "msgStyle.android") or Android()
    action = given.click_action or 0
    return AndroidStyle(
        title=given.title or app_name,
        sound=given.sound or False,
        vibrate=given.vibrate or False,
        removable=given.unremovable or False,
        click_action=action,
        click_param_json=click_param_json(action, given.click_param, "msgStyle.android.click_param"),
        badge=given.badge,
    )


def ios_message(style: MsgStyle, extra: str | None) -> Message:
    """Return the message for iOS devices; a notification with a content and without a sound gets the default one.

    InputError: the payload is larger than APNs accepts.
    """
    is_notif = _is_notif(style.basic, "ios")
    content, path = _content(style.basic, "ios"), _content_path(style.basic, "ios")
    ios = _ios_style(style, has_content=bool(content)) if is_notif else IosStyle()
    if not content and not ios.HasField("badge"):
        raise InputError(Code.EMPTY_WITHOUT_BADGE, at=path)
    message = Message(is_notif=is_notif, content=content, extra=extra, ios=ios)
    check_payload(message, {"content": path, **_IOS_NAMES})
    return message


def _ios_style(style: MsgStyle, *, has_content: bool) -> IosStyle:
    given: Ios = decode(IosOrNone, style.ios, "msgStyle.ios") or Ios()
    return IosStyle(
        badge=given.badge,
        sound=given.sound if given.sound is not None or not has_content else "default",
        content_available=None if given.content_available is None else bool(given.content_available),
        category=given.category,
    )


def _content(basic: Basic, platform: Literal["android", "ios"]) -> str:
    content: str | None = basic.content if isinstance(basic.content, str) else getattr(basic.content, platform)
    if content is None:
        raise InputError(Code.MISSING, at=_content_path(basic, platform))
    return content


def _content_path(basic: Basic, platform: Literal["android", "ios"]) -> str:
    return "msgStyle.basic.content" if isinstance(basic.content, str) else f"msgStyle.basic.content.{platform}"


def _is_notif(basic: Basic, platform: Literal["android", "ios"]) -> bool:
    value = getattr(basic.is_notif, platform) if isinstance(basic.is_notif, NotifByPlatform) else basic.is_notif
    if value is None:
        raise InputError(Code.MISSING, at=f"msgStyle.basic.is_notif.{platform}")
    return bool(value)
