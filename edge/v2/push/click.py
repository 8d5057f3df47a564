"""What happens when an Android notification is clicked: click_action and the click_param that belongs to it."""

from typing import Annotated, Any, Literal

import msgspec

from edge.core.parsing.typed import ABSENT, convert, decode
from services.runtime.errors import InputError

Given = Annotated[str, msgspec.Meta(min_length=1)]
Tip = Annotated[str, msgspec.Meta(max_length=10)]
Title = Annotated[str, msgspec.Meta(max_length=15)]
Summary = Annotated[str, msgspec.Meta(max_length=100)]
Seconds = Annotated[int, msgspec.Meta(ge=1, le=60)]
Flag = Literal[0, 1]

LAST_ACTION = 7
_PLAIN = (0, 1)
_TEXT = (2, 3)


class LandingPage(msgspec.Struct, frozen=True, rename="kebab"):
    picture_addr: Given
    picture_hyperlink: str | None = None
    jump_button: Flag = 0
    jump_seconds: Seconds | None = None
    tip_content: Tip | None = None
    tip_url: str | None = None
    download_condition: Flag = 0

    def check(self, at: str) -> None:
        if self.tip_content and not self.tip_url:
            raise InputError(f"{at}.tip-url is missing: tip-content needs it")


class PopUp(msgspec.Struct, frozen=True, rename="kebab"):
    popup_mode: Literal[1, 2]
    picture_addr: Given
    title: Title | None = None
    picture_hyperlink: str | None = None
    tip_content: Tip | None = None
    tip_url: str | None = None
    download_condition: Flag = 0

    def check(self, at: str) -> None:
        if self.popup_mode == 2 and not self.title:
            raise InputError(f"{at}.title is missing: popup-mode 2 needs it")


class Article(msgspec.Struct, frozen=True, rename="kebab"):
    title: Title | None = None
    picture_addr: str | None = None
    text_abstract: Summary | None = None
    text_detail: str | None = None


class InformationFlow(msgspec.Struct, frozen=True, rename="kebab"):
    flow_mode: Literal[1, 2]
    information: Annotated[list[Article], msgspec.Meta(min_length=2, max_length=7)]
    top_title: Title | None = None
    download_condition: Flag = 0

    def check(self, at: str) -> None:
        for index, article in enumerate(self.information):
            if self.flow_mode == 1 and not article.text_abstract:
                raise InputError(f"{at}.information[{index}].text-abstract is missing: flow-mode 1 needs it")


class RichMedia(msgspec.Struct, frozen=True):
    url: Given

    def check(self, at: str) -> None:
        """Nothing more to check."""


_BY_ACTION: dict[int, type[LandingPage | PopUp | InformationFlow | RichMedia]] = {
    4: LandingPage,
    5: PopUp,
    6: InformationFlow,
    7: RichMedia,
}


def click_param_json(action: int, raw: msgspec.Raw, at: str) -> str:
    """The JSON text of click_param as devices get it, "" where the action has none. InputError names the field."""
    if action in _PLAIN:
        return ""
    if raw == ABSENT:
        raise InputError(f"{at} is missing: click_action {action} needs it")
    if action in _TEXT:
        return msgspec.json.encode(decode(Given, raw, at)).decode()
    param = _with_hyphens(decode(dict[str, Any], raw, at))
    convert(_BY_ACTION[action], param, at).check(at)
    return msgspec.json.encode(param).decode()


def _with_hyphens(param: dict[str, Any]) -> dict[str, Any]:
    """Samples in the field write `picture_addr` where all other keys have hyphens."""
    if "picture_addr" in param:
        param.setdefault("picture-addr", param.pop("picture_addr"))
    return param
