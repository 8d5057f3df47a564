"""The endpoint of the v2 interface for pushes, and its answers."""

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, Literal
from zoneinfo import ZoneInfo

import msgspec
from falcon.asgi import Request, Response
from msgspec import UNSET, UnsetType

from edge.core.admission import Admission
from edge.core.answers import TOKEN_NOT_FOUND, Content, FailedToken, Reply, answer, failed_token
from edge.core.idempotency import IdempotentPushes
from edge.core.parsing.fields import MessageId, Shown, Text, described
from edge.core.push import AppPush, PushResult, RequestedPushes
from edge.core.signature import AppRef
from edge.v2.apps import push_apps
from edge.v2.push.requests import PushOrder, push_order
from protos.registry.v1.apps_pb2 import PLATFORM_ANDROID, App
from services.domain.apps import AppDirectory
from services.errors import SignError
from services.process.clock import Clock

# Answers of POST /v2/push.

_BY_ALIAS = (3, 4)
_BY_TOKEN = 5
_Accepted = Annotated[Literal[0], described("Accepted, and durable.")]
_TaskKey = Annotated[str | UnsetType, described("The key of a timed push.")]


_Appkey = Annotated[str | UnsetType, described("The iOS app; where the iOS apps are a list.")]


class Sent(Reply, frozen=True):
    """The outcome of the push to one app."""

    result: _Accepted
    desc: Text
    id: Annotated[MessageId, described("The message id. An entry of a token list has its own: this plus its position.")]
    not_found: Annotated[list[str] | UnsetType, described("Aliases without a device; with userScope 3 and 4.")] = UNSET
    details: Annotated[
        list[FailedToken] | UnsetType,
        described("Tokens that failed; with userScope 5. On iOS only where there are any."),
    ] = UNSET
    task_key: _TaskKey = UNSET
    appkey: _Appkey = UNSET


class NotSent(Reply, frozen=True):
    """The only token that was named for this app is unknown."""

    result: Annotated[Literal[401], described("Always 401.")]
    desc: Annotated[str, described(TOKEN_NOT_FOUND)]
    task_key: _TaskKey = UNSET
    appkey: _Appkey = UNSET


class NothingToSend(Reply, frozen=True, kw_only=True):
    """No token was named for this app; with userScope 5."""

    result: _Accepted = 0
    desc: Annotated[str, described("no token named")] = "no token named"
    details: Annotated[list[FailedToken] | UnsetType, described("Empty; on Android.")] = UNSET
    task_key: _TaskKey = UNSET
    appkey: _Appkey = UNSET


_Outcome = Annotated[Any, Shown(Sent, NotSent, NothingToSend)]


class SentToApps(Sent, frozen=True, kw_only=True):
    """The answer when the iOS apps are a list and there is no Android app."""

    ios: Annotated[list[_Outcome], described("One entry for each app, in the order of the request.")]


class SentToTokens(Sent, frozen=True, kw_only=True):
    """The answer to a push to tokens of one platform: its outcome at the top, and under the platform's name too."""

    android: Annotated[Any, Shown(Sent), described("The outcome, where the platform is Android.")] = UNSET
    ios: Annotated[Any, Shown(Sent), described("The outcome, where the platform is iOS.")] = UNSET


class SentToPlatforms(Reply, frozen=True):
    """The answer when the push goes to both platforms; `ios` is a list when the request lists the iOS apps."""

    result: _Accepted
    android: Annotated[_Outcome, described("The outcome on Android.")]
    ios: Annotated[Any, Shown(Sent, NotSent, NothingToSend, list[_Outcome]), described("The outcome on iOS.")]
    task_key: Annotated[str | UnsetType, described("The key of a timed push; one key for both platforms.")] = UNSET


def push_reply(order: PushOrder, results: Sequence[PushResult], task_key: str = "") -> Reply | Content:
    """Answer a push to one platform with its entry, a push to both with an entry under the name of each.

    A list of iOS apps is answered with a list, in which each entry has its appkey.
    """
    key = task_key or UNSET
    by_app = {
        push.app.appkey: _entry(order, push, result, key) for push, result in zip(order.pushes, results, strict=True)
    }
    apps = order.apps
    android = apps.android and (by_app.get(apps.android.appkey) or NothingToSend(details=[], task_key=key))
    ios = [by_app.get(app.appkey) or NothingToSend(task_key=key) for app in apps.ios]
    if not apps.ios_listed:
        if android and ios:
            return SentToPlatforms(result=0, android=android, ios=ios[0], task_key=key)
        return _of_one(order, android or ios[0])
    listed = [msgspec.structs.replace(entry, appkey=app.appkey) for app, entry in zip(apps.ios, ios, strict=True)]
    if android:
        return SentToPlatforms(result=0, android=android, ios=listed, task_key=key)
    sent = next((entry for entry in ios if isinstance(entry, Sent)), None)
    if sent is None:
        refused = next(entry for entry in ios if isinstance(entry, NotSent))
        return {**msgspec.to_builtins(refused), "ios": listed}
    return SentToApps(**msgspec.structs.asdict(sent), ios=listed)


def _of_one(order: PushOrder, entry: Reply) -> Reply:
    """Return the answer for one app: with userScope 5 also under the platform's name, as for both platforms."""
    if order.scope != _BY_TOKEN or not isinstance(entry, Sent):
        return entry
    fields = msgspec.structs.asdict(entry)
    return SentToTokens(**fields, android=entry) if order.apps.android else SentToTokens(**fields, ios=entry)


def _is_android(push: AppPush) -> bool:
    return push.app.platform == PLATFORM_ANDROID


def _entry(order: PushOrder, push: AppPush, result: PushResult, task_key: str | UnsetType) -> Sent | NotSent:
    if not result.msgid:
        return NotSent(result=401, desc=TOKEN_NOT_FOUND, task_key=task_key)
    not_found: list[str] | UnsetType = UNSET
    details: list[FailedToken] | UnsetType = UNSET
    if order.scope in _BY_ALIAS:
        not_found = list(result.unknown_aliases)
    elif order.scope == _BY_TOKEN and (_is_android(push) or result.unknown_tokens):
        tokens = push.audience.tokens.tokens
        details = [
            failed_token(result.msgid + position, position, tokens[position]) for position in result.unknown_tokens
        ]
    return Sent(result=0, desc="send ok", id=result.msgid, not_found=not_found, details=details, task_key=task_key)


class PushEndpoint:
    """POST /v2/push"""

    def __init__(
        self,
        admission: Admission,
        apps: AppDirectory,
        pushes: IdempotentPushes,
        clock: Clock,
        zone: ZoneInfo,
        max_period_s: int,
    ) -> None:
        self._admission = admission
        self._apps = apps
        self._pushes = pushes
        self._clock = clock
        self._zone = zone
        self._max_period_s = max_period_s

    async def on_post(self, request: Request, response: Response) -> None:
        signed = await self._admission.admit(request, push_apps)
        apps = signed.apps

        def requested(raw: bytes) -> RequestedPushes:
            order = push_order(raw, apps, self._app, self._clock.now_ms(), self._zone, self._max_period_s)
            return RequestedPushes(order.pushes, partial(push_reply, order), order.due_ms)

        answer(response, await self._pushes.handle(signed, requested))

    def _app(self, ref: AppRef) -> App:
        app = self._apps.get(ref.appkey)
        if app is None:
            raise SignError("sign not correct")
        return app
