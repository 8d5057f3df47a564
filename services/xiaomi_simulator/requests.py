"""Requests to the simulator (message/regid of version 3), refused by Xiaomi's codes."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType, field

from services.push_simulator.forms import read_form
from services.push_simulator.http1_service import PushRefusedError, ReceivedRequest

# Documented codes. Which of its group Xiaomi chooses for a fault is an assumption; the reaction to each group is not.
WRONG_PARAMETER = "10008"
MISSING_PARAMETER = "10016"
WRONG_VALUE = "10017"
NOT_AUTHENTICATED = "21301"
WRONG_PACKAGE = "22006"
WRONG_CHANNEL = "27001"

MAX_IDS = 1000
MAX_TTL_MS = 10 * 86_400_000
"""Of the private class; which class a message is of depends on its channel, which the simulator does not know."""

_EXTRA = "extra."
_MAX_OWN_EXTRAS, _MAX_OWN_EXTRA = 10, 1024
_JOBKEY = re.compile("[0-9A-Za-z_-]{1,20}")
_NUMBER = re.compile("-?[0-9]+")


class XiaomiForm(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The fields that Xiaomi knows; values are text."""

    registration_id: str = ""
    restricted_package_name: str = ""
    title: str = ""
    description: str = ""
    payload: str = ""
    pass_through: Literal[0, 1] = 0
    notify_type: Literal[-1, 1, 2, 3, 4, 5, 6, 7] = -1
    time_to_live: int | UnsetType = UNSET
    notify_id: int | UnsetType = UNSET
    channel_id: str = field(name="extra.channel_id", default="")
    notify_effect: Literal[1, 2, 3] | UnsetType = field(name="extra.notify_effect", default=UNSET)
    intent_uri: str = field(name="extra.intent_uri", default="")
    web_uri: str = field(name="extra.web_uri", default="")
    notify_foreground: Literal[0, 1] = field(name="extra.notify_foreground", default=1)
    jobkey: str | UnsetType = field(name="extra.jobkey", default=UNSET)
    only_send_once: str = field(name="extra.only_send_once", default="")
    callback: str = field(name="extra.callback", default="")
    callback_param: str = field(name="extra.callback.param", default="")
    callback_type: int | UnsetType = field(name="extra.callback.type", default=UNSET)


@dataclass(frozen=True, slots=True)
class XiaomiMessage:
    """A right form, and the extras in it that are the app's own, by their names without `extra.`."""

    form: XiaomiForm
    extras: Mapping[str, str]


_NUMBERS = {
    "pass_through", "notify_type", "time_to_live", "notify_id", "extra.notify_effect", "extra.notify_foreground",
    "extra.callback.type",
}  # fmt: skip
_KNOWN = frozenset(known.encode_name for known in msgspec.structs.fields(XiaomiForm))


def validate(headers: Mapping[str, str], body: bytes) -> ReceivedRequest[XiaomiMessage]:
    """Read the form of `message/regid`. PushRefusedError."""
    try:
        fields = read_form(headers, body)
    except ValueError as error:
        raise PushRefusedError(WRONG_PARAMETER, str(error)) from None
    known = {name: value for name, value in fields.items() if name in _KNOWN}
    extras = {name.removeprefix(_EXTRA): value for name, value in fields.items() if name not in _KNOWN}
    unknown = [name for name in fields if name not in _KNOWN and not name.startswith(_EXTRA)]
    if unknown:
        raise PushRefusedError(WRONG_PARAMETER, f"unknown: {unknown}")
    for name in _NUMBERS & known.keys():
        if _NUMBER.fullmatch(known[name]) is None:
            raise PushRefusedError(WRONG_VALUE, name)
    try:
        form = msgspec.convert(known, XiaomiForm, strict=False)
    except msgspec.ValidationError as error:
        raise PushRefusedError(WRONG_VALUE, str(error)) from None
    _check_addressing(form)
    _check_content(form)
    _check_options(form)
    if len(extras) > _MAX_OWN_EXTRAS or any(len(text) > _MAX_OWN_EXTRA for pair in extras.items() for text in pair):
        raise PushRefusedError(WRONG_VALUE, "extra")
    return ReceivedRequest(XiaomiMessage(form, extras), form.registration_id.split(","))


def _check_addressing(form: XiaomiForm) -> None:
    if not form.registration_id:
        raise PushRefusedError(MISSING_PARAMETER, "registration_id")
    ids = form.registration_id.split(",")
    if len(ids) > MAX_IDS or not all(ids):
        raise PushRefusedError(WRONG_VALUE, "registration_id")
    if not form.restricted_package_name:
        raise PushRefusedError(MISSING_PARAMETER, "restricted_package_name")
    if not form.channel_id:
        raise PushRefusedError(WRONG_CHANNEL, "extra.channel_id")


def _check_content(form: XiaomiForm) -> None:
    if form.pass_through == 1:
        if not form.payload:
            raise PushRefusedError(MISSING_PARAMETER, "payload")
    elif not form.title.strip() or not form.description.strip():
        raise PushRefusedError(MISSING_PARAMETER, "a notification needs title and description")
    if len(form.title) >= 50 or len(form.description) >= 128:
        raise PushRefusedError(WRONG_VALUE, "title or description is too long")
    needed = {2: bool(form.intent_uri), 3: bool(form.web_uri)}
    effect = 0 if form.notify_effect is UNSET else form.notify_effect
    if not needed.get(effect, True):
        raise PushRefusedError(MISSING_PARAMETER, "extra.intent_uri or extra.web_uri")
    if (form.intent_uri and effect != 2) or (form.web_uri and effect != 3):
        raise PushRefusedError(WRONG_VALUE, "extra.notify_effect")


def _check_options(form: XiaomiForm) -> None:
    is_right = {
        "time_to_live": form.time_to_live is UNSET or 1 <= form.time_to_live <= MAX_TTL_MS,
        "notify_id": form.notify_id is UNSET or 0 <= form.notify_id < 2**31,
        "extra.jobkey": form.jobkey is UNSET or _JOBKEY.fullmatch(form.jobkey) is not None,
        "extra.callback.param": len(form.callback_param.encode()) <= 256,
        "extra.callback.type": form.callback_type is UNSET or 1 <= form.callback_type <= 255,
    }
    for name, right in is_right.items():
        if not right:
            raise PushRefusedError(WRONG_VALUE, name)
