"""Checks of what people write into the fields of several vendors' credentials. Each raises InputError."""

import re
from collections.abc import Callable, Container, Mapping
from urllib.parse import urlsplit

from services.domain.channel_credentials.fields import FieldValue
from services.domain.channel_receipts.receipts import ON, read_setting
from services.domain.channel_receipts.receipts import SETTING as RECEIPTS
from services.errors import Code, InputError

DEFAULT_CATEGORY = "MARKETING"
"""The category of messages that name none, or one that is not granted: vendors penalise apps that claim more."""

RECEIPTS_URL = "receipts_url"
"""The setting with the address of this service, for vendors that are told it with each message."""

_MAX_SECRET = 200
_MAX_ID = 64
_MAX_CLASS = 200
_MAX_CATEGORIES = 30
_ID = re.compile(rf"[A-Za-z0-9._-]{{1,{_MAX_ID}}}")
_SECRET = re.compile(rf"[!-~]{{1,{_MAX_SECRET}}}")
_CATEGORY = re.compile(r"[A-Z][A-Z_]{0,39}")
_CHANNEL = re.compile(r"([A-Z][A-Z_]{0,39})=([A-Za-z0-9._-]{1,64})")
_MAX_URL = 100
_CLASS = re.compile(r"[A-Za-z_][A-Za-z0-9_$]*(?:\.[A-Za-z_][A-Za-z0-9_$]*)+")


def read_secret(value: str, at: str) -> FieldValue:
    """Read a secret of printable characters, without what an editor adds around it."""
    secret = value.strip()
    if not _SECRET.fullmatch(secret):
        raise InputError(Code.NOT_PRINTABLE, at=at, most=_MAX_SECRET)
    return FieldValue({}, secret)


def id_reader(name: str, *, is_optional: bool = False) -> Callable[[str, str], FieldValue]:
    """Return the check of an id of the vendor's, kept as the setting `name`; an optional one may be emptied."""

    def read(value: str, at: str) -> FieldValue:
        text = value.strip()
        if not _ID.fullmatch(text) and not (is_optional and not text):
            raise InputError(Code.NOT_PRINTABLE, at=at, most=_MAX_ID)
        return FieldValue({name: text})

    return read


def read_categories(value: str, at: str) -> FieldValue:
    """Read a list of categories that the vendor has granted."""
    categories = sorted(set(value.replace(",", " ").split()))
    if len(categories) > _MAX_CATEGORIES:
        raise InputError(Code.TOO_MANY_ENTRIES, at=at, most=_MAX_CATEGORIES)
    if not all(map(_CATEGORY.fullmatch, categories)):
        raise InputError(Code.UNREADABLE, at=at, problem="write categories in capitals, such as IM or WORK")
    return FieldValue({"categories": ",".join(categories)})


def read_badge_class(value: str, at: str) -> FieldValue:
    """Read the class by which a launcher shows badges; an empty one ends them."""
    name = value.strip()
    if name and (len(name) > _MAX_CLASS or not _CLASS.fullmatch(name)):
        raise InputError(Code.UNREADABLE, at=at, problem="write a class with its package, such as com.example.Main")
    return FieldValue({"badge_class": name})


def read_channels(value: str, at: str) -> FieldValue:
    """Read a list of categories with the id of the vendor's notification channel for each."""
    pairs = sorted(set(value.replace(",", " ").split()))
    if len(pairs) > _MAX_CATEGORIES:
        raise InputError(Code.TOO_MANY_ENTRIES, at=at, most=_MAX_CATEGORIES)
    found = [_CHANNEL.fullmatch(pair) for pair in pairs]
    names = [each[1] for each in found if each is not None]
    if len(names) < len(pairs) or len(set(names)) < len(names):
        raise InputError(Code.UNREADABLE, at=at, problem="write one CATEGORY=ID for each, such as MARKETING=104234")
    return FieldValue({"channels": ",".join(pairs)})


def read_all_channels(value: str, at: str) -> FieldValue:
    """Read notification channels as `read_channels` does, one for all categories without their own among them."""
    found = read_channels(value, at)
    if DEFAULT_CATEGORY not in channels_of(found.settings["channels"]):
        raise InputError(Code.UNREADABLE, at=at, problem=f"name a channel for {DEFAULT_CATEGORY}, which others share")
    return found


def channels_of(setting: str) -> Mapping[str, str]:
    """Return the notification channels by category, from what `read_channels` has made."""
    return dict(pair.split("=", 1) for pair in setting.split(",") if pair)


def granted_category(wanted: str, granted: Container[str]) -> str:
    """Return the category of a message that is said to be of another one, or of "" for none."""
    return wanted if wanted in granted else DEFAULT_CATEGORY


def read_receipts_url(value: str, at: str) -> FieldValue:
    """Read the address at which a vendor reaches this service, for receipts; an empty one ends them.

    The path under it gets a new token, because vendors that are given the URL with each message sign nothing.
    """
    url = value.strip().rstrip("/")
    if not url:
        return FieldValue({RECEIPTS_URL: "", RECEIPTS: ""})
    parts = urlsplit(url)
    if len(url) > _MAX_URL or parts.scheme != "https" or not parts.hostname or parts.query or parts.fragment:
        raise InputError(
            Code.UNREADABLE, at=at, problem=f"write https:// and a host, {_MAX_URL} characters at most, and no query"
        )
    return FieldValue({RECEIPTS_URL: url, **read_setting(ON, at)})
