"""The click on an Android notification: click_action and its click_param."""

from typing import Annotated, Any, Literal

import msgspec

from edge.core.parsing import integers
from edge.core.parsing.fields import Flag, NotEmpty, described
from edge.core.parsing.typed import ABSENT, decode
from services.runtime.errors import InputError

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
            raise InputError(f"{at}.tip-url is missing: tip-content needs it")


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
            raise InputError(f"{at}.title is missing: popup-mode 2 needs it")


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
                raise InputError(f"{at}.information[{index}].text-abstract is missing: flow-mode 1 needs it")


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
        raise InputError(f"{at} is missing: click_action {action} needs it")
    if action in _WITH_TEXT:
        return msgspec.json.encode(decode(NotEmpty, raw, at)).decode()
    param = msgspec.json.encode(_with_hyphens(decode(dict[str, Any], raw, at)))
    plain = integers.rewritten(param, _BY_ACTION[action])
    decode(_BY_ACTION[action], plain, at).check(at)
    return plain.decode()


def _with_hyphens(param: dict[str, Any]) -> dict[str, Any]:
    """Accept `picture_addr`, which client samples write although all other keys have hyphens."""
    if "picture_addr" in param:
        param.setdefault("picture-addr", param.pop("picture_addr"))
    return param
