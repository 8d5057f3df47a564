"""A notification as vivo's request: what the phone shows, cut to what it has space for, the whole in its map."""

from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from protos.push.v1.push_pb2 import ChannelOptions, Message
from services.delivery.channels.batches.display import Opens, cut, notify_id, tap_of, wide
from services.delivery.channels.shortening import shortened
from services.domain.channel_credentials.readers import DEFAULT_CATEGORY, granted_category
from services.domain.channel_credentials.vivo import VivoCredentials
from services.domain.device_protocol.pushes import PushFields, PushText, push_fields

MAX_TITLE, MAX_CONTENT = 40, 100
"""Lengths, in which Chinese characters count as two, because vivo's older library counts so."""

MAX_PARAM = 1024
MAX_MAP = 1024
MIN_TTL_S, MAX_TTL_S = 60, 86_400
DATA_KEY = "carillon"
"""The name of the only entry of the map: a push frame as JSON."""

SYSTEM_CATEGORIES = frozenset(("IM", "ACCOUNT", "TODO", "DEVICE_REMINDER", "ORDER", "SUBSCRIPTION"))
"""Categories of system messages, which are shown at any hour and have a quota of their own."""

_MAX_MSGID = 2**53
_OPERATIONAL, _SYSTEM = 0, 1
_SKIPS: Mapping[Opens, Literal[1, 2, 4]] = {Opens.APP: 1, Opens.URL: 2, Opens.INTENT: 4}
_ANY_NETWORK = -1
_FORMAL = 0


class _SendRequest(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """vivo's names are in camel case."""

    app_id: str
    reg_id: str
    notify_type: int
    title: str
    content: str
    time_to_live: int
    skip_type: int
    network_type: int
    classification: int
    client_custom_map: Mapping[str, str]
    request_id: str
    push_mode: int
    notify_id: int
    foreground_show: bool
    skip_content: str | UnsetType = UNSET
    category: str | UnsetType = UNSET


_encoder = msgspec.json.Encoder()


class VivoMessage:
    """The message of a push for all devices, with what an app's settings say.

    Its map has a push frame as JSON, shortened until it fits with any id.
    """

    headers: Mapping[str, str] = {}

    def __init__(
        self, message: Message, expires_ms: int, options: ChannelOptions, credentials: VivoCredentials
    ) -> None:
        self._expires_ms = expires_ms
        self._app_id = credentials.app_id
        self._category = granted_category(options.category, credentials.categories)
        self._classification = _SYSTEM if self._category in SYSTEM_CATEGORIES else _OPERATIONAL
        self.quota = "system" if self._classification == _SYSTEM else "operational"
        self.daily_cap = 0 if self._classification == _SYSTEM else credentials.limits.daily_cap
        self._fields = shortened(push_fields(message, expires_ms), _fits)
        self._frame = PushText(self._fields)
        self._tap = tap_of(self._fields, schemes=("https://", "http://"), most=MAX_PARAM)

    def body(
        self, msgid: int, tokens: Sequence[str], now_ms: int, *, is_plain: bool = False, dry: bool = False
    ) -> bytes:
        """Return the JSON of a message for one phone. Retries have the same ids, so that a phone shows one.

        `is_plain`: as an operational message without a category.
        """
        fields = self._fields
        (token,) = tokens
        request = _SendRequest(
            app_id=self._app_id,
            reg_id=token,
            notify_type=1 + (fields.sound is True) + 2 * (fields.vibrate is True),
            title=cut(fields.title or "", MAX_TITLE, wide),
            content=cut(fields.content, MAX_CONTENT, wide),
            time_to_live=min(max((self._expires_ms - now_ms) // 1000, MIN_TTL_S), MAX_TTL_S),
            skip_type=_SKIPS[self._tap.opens],
            skip_content=self._tap.param or UNSET,
            network_type=_ANY_NETWORK,
            classification=_OPERATIONAL if is_plain else self._classification,
            category=UNSET if is_plain or self._category == DEFAULT_CATEGORY else self._category,
            client_custom_map={DATA_KEY: self._frame.text(msgid).decode()},
            request_id=f"carillon-{msgid}-{sha256(token.encode()).hexdigest()[:32]}",
            push_mode=_FORMAL,
            notify_id=notify_id(msgid),
            foreground_show=False,
        )
        return _encoder.encode(request)


def _fits(fields: PushFields) -> bool:
    return len(DATA_KEY) + wide(PushText(fields).text(_MAX_MSGID).decode()) <= MAX_MAP
