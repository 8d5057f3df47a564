"""The table of push services' answers: what follows from each for the message, its subscription and its app."""

import re
from collections import OrderedDict
from collections.abc import Callable, Mapping
from enum import Enum, auto
from typing import NamedTuple, assert_never

import msgspec

from services.delivery.channels import (
    CircuitChange,
    DelayDevice,
    Reaction,
    RecordFailed,
    RecordSent,
    RemoveAddress,
    ResendOnce,
    RetryHistory,
    RetryLater,
    retry_after_ms,
)
from services.domain.channel_credentials.fields import words
from services.domain.recorded_reasons import FixedReason

UNKNOWN = 0
LOCAL = -1
ENDPOINT_REFUSED = FixedReason.ENDPOINT_REFUSED
NO_CONNECTION = FixedReason.NO_CONNECTION
"""The names of LOCAL."""


class WebPushAnswer(NamedTuple):
    """A push service's answer.

    Status UNKNOWN: there was no answer, so it may or may not have accepted the message. Status LOCAL: the request was
    not sent, because the endpoint may not be called, or there is no connection to it. `name`: what the service calls
    it, or the status; "" if it has accepted the message. `ttl_s`: for how long the service keeps the message, if it
    says.
    """

    status: int
    name: str = ""
    retry_after_ms: int = 0
    ttl_s: int | None = None

    @property
    def reason(self) -> str:
        """The name, with its meaning where it is a number."""
        found = HANDLINGS.get((self.status, self.name))
        return f"{self.name} {found.words}" if found and found.words else self.name

    @property
    def is_unknown(self) -> bool:
        return self.status == UNKNOWN


class WebPushAction(Enum):
    """The consequence of an answer.

    The message keeps its topic, so a repetition replaces the message that the service has stored.
    """

    ACCEPT = auto()
    """The service has the message, which does not mean that the browser can decrypt it."""

    FAIL = auto()
    """The request is wrong, and would be again."""

    REMOVE = auto()
    """The subscription has ended, or is bound to another key."""

    SHORTEN = auto()
    """The body is too long for this service: send less of the message, once."""

    RENEW_TOKEN = auto()
    """The service does not accept the app's token: send once with a new one, then see `Refusals`."""

    DELAY = auto()
    """The service wants no messages for this subscription for a while."""

    RETRY = auto()
    """The service did not accept the message; it may later."""

    REPEAT = auto()
    """It is unknown whether the service accepted the message."""


class WebPushHandling(NamedTuple):
    """The action after an answer. `alarm`: an operator has to act. `words`: the meaning of a number, for people."""

    action: WebPushAction
    alarm: bool = False
    words: str = ""

    def meaning(self, text: str) -> "WebPushHandling":
        return self._replace(words=text)


_INVALID = WebPushHandling(WebPushAction.FAIL, alarm=True)
_ENDED = WebPushHandling(WebPushAction.REMOVE)
_REFUSED_TOKEN = WebPushHandling(WebPushAction.RENEW_TOKEN)
_TOO_MANY = WebPushHandling(WebPushAction.DELAY)
_NOT_NOW = WebPushHandling(WebPushAction.RETRY)
_UNKNOWN = WebPushHandling(WebPushAction.REPEAT)

HANDLINGS: dict[tuple[int, str], WebPushHandling] = {
    (400, "UnauthorizedRegistration"): _ENDED,  # Chrome's: subscribed with another key
    (400, "errno 101"): _INVALID.meaning(words("encryption headers missing")),  # Mozilla's
    (400, "errno 108"): _INVALID.meaning(words("wrong router type")),
    (400, "errno 110"): _INVALID.meaning(words("wrong encryption headers")),
    (400, "errno 111"): _INVALID.meaning(words("time to live missing")),
    (400, "errno 112"): _INVALID.meaning(words("wrong time to live")),  # by Mozilla's document; its code has 114
    (400, "errno 113"): _INVALID.meaning(words("wrong topic")),
    (400, "errno 114"): _INVALID.meaning(words("wrong time to live")),
    (401, "errno 109"): _REFUSED_TOKEN.meaning(words("not authenticated")),
    (403, "BadJwtToken"): _REFUSED_TOKEN,  # Apple's
    (404, "errno 102"): _ENDED.meaning(words("unknown endpoint")),
    (410, "errno 103"): _ENDED.meaning(words("endpoint expired")),
    (410, "errno 105"): _ENDED.meaning(words("endpoint unavailable")),
    (410, "errno 106"): _ENDED.meaning(words("invalid subscription")),
    (413, "errno 104"): WebPushHandling(WebPushAction.SHORTEN, words=words("message too large")),
    (429, "code 42901"): _TOO_MANY.meaning(words("too many messages")),  # ntfy's
    (503, "errno 201"): _NOT_NOW.meaning(words("temporarily unavailable")),
    (503, "errno 202"): _NOT_NOW.meaning(words("temporarily unavailable")),
    (507, "code 50701"): _NOT_NOW.meaning(words("no subscriber yet")),  # ntfy's
    (LOCAL, ENDPOINT_REFUSED): _INVALID,
    (LOCAL, NO_CONNECTION): _NOT_NOW,
}
"""Documented answers; any other is handled by its status."""

_BY_STATUS: Mapping[int, WebPushHandling] = {
    401: _REFUSED_TOKEN,
    403: _REFUSED_TOKEN,
    404: _ENDED,
    408: _UNKNOWN,
    410: _ENDED,
    413: WebPushHandling(WebPushAction.SHORTEN),
    425: _NOT_NOW,
    429: _TOO_MANY,
    500: _UNKNOWN,
    502: _UNKNOWN,
    503: _NOT_NOW,
    504: _UNKNOWN,
    507: _NOT_NOW,
}
_ACCEPTED = WebPushHandling(WebPushAction.ACCEPT)


def handling_of(answer: WebPushAnswer) -> WebPushHandling:
    """Return how to handle an answer; a redirection is an error, because it is not followed."""
    if 200 <= answer.status < 300:
        return _ACCEPTED
    if answer.is_unknown:
        return _UNKNOWN
    found = HANDLINGS.get((answer.status, answer.name)) or _BY_STATUS.get(answer.status)
    return found or (_INVALID if answer.status < 500 else _UNKNOWN)


def label(answer: WebPushAnswer) -> str:
    """The answer as a metric label: the status and a documented name, so that labels stay few."""
    status = {UNKNOWN: "none", LOCAL: "local"}.get(answer.status, str(answer.status))
    return f"{status} {answer.name}" if (answer.status, answer.name) in HANDLINGS else status


SMALL = "small body"
RENEWED = "new token"
"""Variants of a message: less of it is sent; its token was renewed."""

_ALARM = "a push service refuses the form of a Web Push request"
_ALARM_ENDPOINT = "an endpoint of a Web Push subscription is not called"


def react(answer: WebPushAnswer, history: RetryHistory, judge: Callable[[], Reaction]) -> Reaction:
    """Decide what follows. `judge`: what follows where the service refuses a new token too, see `Refusals`."""
    handling = handling_of(answer)
    alarm = (_ALARM_ENDPOINT if answer.status == LOCAL else _ALARM) if handling.alarm else ""
    match handling.action:
        case WebPushAction.ACCEPT:
            return Reaction(RecordSent(), CircuitChange.CLOSE)
        case WebPushAction.FAIL:
            return Reaction(RecordFailed(), alarm=alarm)
        case WebPushAction.REMOVE:
            return Reaction(RemoveAddress())
        case WebPushAction.SHORTEN if SMALL not in history.variants:
            return Reaction(ResendOnce(SMALL))
        case WebPushAction.SHORTEN:
            return Reaction(RecordFailed())
        case WebPushAction.RENEW_TOKEN if RENEWED not in history.variants:
            return Reaction(ResendOnce(RENEWED))
        case WebPushAction.RENEW_TOKEN:
            return judge()
        case WebPushAction.DELAY:
            return Reaction(DelayDevice(answer.retry_after_ms))
        case WebPushAction.RETRY | WebPushAction.REPEAT:
            return Reaction(RetryLater(answer.retry_after_ms, is_unknown=handling.action is WebPushAction.REPEAT))
        case _:
            assert_never(handling.action)


# Subscriptions whose push service does not accept the app's token.


class _Refused(NamedTuple):
    first_ms: int
    times: int


class Refusals:
    """Judges subscriptions whose push service refuses the app's key, even with a new token.

    A push service may do so to single subscriptions for a day without a reason, so one is removed after REMOVED_AFTER
    refusals over REMOVED_AFTER_MS; messages wait meanwhile. If many subscriptions of an app are refused and none is
    accepted, the app's key is wrong: all are kept, and the app is stopped.
    """

    REMOVED_AFTER = 3
    REMOVED_AFTER_MS = 24 * 3_600_000
    RETRY_MS = 3_600_000
    MOSTLY = 20
    """Different subscriptions that are refused one after the other, until the app is stopped."""

    _KEPT = 10_000

    def __init__(self) -> None:
        self._refused: dict[str, OrderedDict[str, _Refused]] = {}
        self._in_a_row: dict[str, set[str]] = {}

    def accepted(self, appkey: str, endpoint: str) -> None:
        """Note that a service has accepted the app's key."""
        self._in_a_row.pop(appkey, None)
        if (refused := self._refused.get(appkey)) is not None:
            refused.pop(endpoint, None)

    def judge(self, appkey: str, endpoint: str, now_ms: int) -> Reaction:
        """Note a refusal, and return what follows."""
        in_a_row = self._in_a_row.setdefault(appkey, set())
        if len(in_a_row) < self.MOSTLY:
            in_a_row.add(endpoint)
        refused = self._refused.setdefault(appkey, OrderedDict())
        first_ms, times = refused.get(endpoint, _Refused(now_ms, 0))
        refused[endpoint] = _Refused(first_ms, times + 1)
        if len(refused) > self._KEPT:
            refused.popitem(last=False)
        if len(in_a_row) >= self.MOSTLY:
            alarm = "push services do not accept the app's Web Push key; was it replaced, or is its contact refused?"
            return Reaction(RetryLater(), CircuitChange.OPEN, alarm)
        if times + 1 >= self.REMOVED_AFTER and now_ms - first_ms >= self.REMOVED_AFTER_MS:
            del refused[endpoint]
            return Reaction(RemoveAddress())
        return Reaction(RetryLater(self.RETRY_MS))


# Answers as push services write them.


class _Body(msgspec.Struct):
    """Mozilla's `errno`, Apple's `reason`, and ntfy's `code`, which Mozilla's answers have too."""

    errno: int | None = None
    reason: str | None = None
    code: int | None = None


_bodies = msgspec.json.Decoder(_Body)
_MAX_REASON = 100
_UNAUTHORIZED = b"UnauthorizedRegistration"
_SECONDS = re.compile(r"[0-9]{1,9}")


def parse_answer(status: int, headers: Mapping[str, str], body: bytes, now_ms: int) -> WebPushAnswer:
    """Read an answer. `headers`: by their names in lower case. The status is the name where the body has none."""
    return WebPushAnswer(
        status,
        "" if 200 <= status < 300 else _name(status, body),
        retry_after_ms(headers.get("retry-after", ""), now_ms),
        int(found) if _SECONDS.fullmatch(found := headers.get("ttl", "")) else None,
    )


def _name(status: int, body: bytes) -> str:
    if _UNAUTHORIZED in body:
        return _UNAUTHORIZED.decode()
    try:
        found = _bodies.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        found = _Body()
    if found.errno is not None:
        return f"errno {found.errno}"
    if found.reason:
        return found.reason[:_MAX_REASON]
    return f"HTTP {status}" if found.code in (None, status) else f"code {found.code}"
