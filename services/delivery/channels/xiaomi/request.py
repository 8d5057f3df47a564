"""A message as Xiaomi's form: what the phone shows, cut to what it has space for, the whole as its payload."""

from collections.abc import Mapping, Sequence
from urllib.parse import urlencode

from protos.push.v1.push_pb2 import ChannelOptions, Message
from services.delivery.channels.batches.display import Opens, Tap, cut, notify_id, tap_of
from services.delivery.channels.shortening import shortened
from services.domain.channel_credentials.readers import DEFAULT_CATEGORY
from services.domain.channel_credentials.xiaomi import XiaomiCredentials
from services.domain.channel_receipts.xiaomi import ASKED
from services.domain.device_protocol.pushes import PushFields, PushText, push_fields

MAX_PAYLOAD_BYTES = 4096
MAX_TITLE, MAX_DESCRIPTION = 49, 127
MAX_PARAM = 1024
DAY_MS = 86_400_000
"""How long Xiaomi keeps messages of public notification channels; those of private ones ten times as long."""

_MAX_MSGID = 2**53
_EFFECTS = {Opens.APP: "1", Opens.INTENT: "2", Opens.URL: "3"}
_PARAMS = {Opens.INTENT: "extra.intent_uri", Opens.URL: "extra.web_uri"}
_ALL_NOTICES = "-1"


class XiaomiMessage:
    """The message of a push for all devices, with what an app's settings say.

    Its payload is a push frame as JSON, shortened until it fits with any id.
    """

    headers: Mapping[str, str] = {}

    def __init__(
        self, message: Message, expires_ms: int, options: ChannelOptions, credentials: XiaomiCredentials
    ) -> None:
        self._expires_ms = expires_ms
        self._credentials = credentials
        self.quota = credentials.channel(options.category)
        is_private = self.quota != credentials.channel(DEFAULT_CATEGORY)
        self.daily_cap = 0 if is_private else credentials.limits.daily_cap
        self._max_ttl_ms = 10 * DAY_MS if is_private else DAY_MS
        self._fields = shortened(push_fields(message, expires_ms), _fits)
        self._frame = PushText(self._fields)
        self._form = self._shared()

    def body(
        self, msgid: int, tokens: Sequence[str], now_ms: int, *, is_plain: bool = False, dry: bool = False
    ) -> bytes:
        """Return the form of `message/regid`. Retries have the same job key, of which a phone shows the first alone."""
        form = {
            "registration_id": ",".join(tokens),
            **self._form,
            "payload": self._frame.text(msgid).decode(),
            "time_to_live": str(min(max(self._expires_ms - now_ms, 1000), self._max_ttl_ms)),
            "notify_id": str(notify_id(msgid)),
            "extra.jobkey": f"c-{msgid}",
        }
        if callback := self._credentials.callback:
            form |= {
                "extra.callback": callback.url,
                "extra.callback.param": callback.tags.tag(msgid),
                "extra.callback.type": str(ASKED),
            }
        return urlencode(form).encode()

    def _shared(self) -> dict[str, str]:
        """Return the fields that all requests of the message have."""
        fields, form = self._fields, {"restricted_package_name": self._credentials.package}
        if self.quota:
            form["extra.channel_id"] = self.quota
        if not fields.is_notif:
            return form | {"pass_through": "1"}
        opens, param = self._tap(fields)
        form |= {
            "pass_through": "0",
            "title": cut(fields.title or "", MAX_TITLE),
            "description": cut(fields.content, MAX_DESCRIPTION),
            "notify_type": _ALL_NOTICES,
            "extra.notify_foreground": "0",
            "extra.notify_effect": _EFFECTS[opens],
        }
        return form | ({_PARAMS[opens]: param} if param else {})

    def _tap(self, fields: PushFields) -> Tap:
        return tap_of(fields, schemes=("https://", "http://"), most=MAX_PARAM)


def _fits(fields: PushFields) -> bool:
    return len(PushText(fields).text(_MAX_MSGID)) <= MAX_PAYLOAD_BYTES
