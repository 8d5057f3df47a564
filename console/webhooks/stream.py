"""GET /console/v1/events: the events of an app or a team as server-sent events, for programs that cannot be called."""

import asyncio
import base64
import binascii
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from typing import cast

import falcon
from falcon.asgi import Request, Response, SSEvent

from console.devices.actions import note_data_read
from console.shell.access import Requester
from console.shell.numbers import MAX_MSGID, whole_number
from console.shell.page import Site
from protos.registry.v1.apps_pb2 import EventKind
from protos.webhooks.v1.webhooks_pb2 import WatchEventsRequest, WatchEventsResponse
from protos.webhooks.v1.webhooks_pb2_grpc import WebhooksServiceStub
from services.domain.permissions import Action
from services.domain.webhooks import KINDS
from services.errors import CarillonError, DeadlineError, InputError

HEARTBEAT_S = 10.0
"""Interval at which a stream without events shows that it is there, and looks whether its token may still read."""

LONGEST_MS = 3_600_000
"""After this time a stream ends, and the program connects again, with the position that it has."""

_FIRST_S = 10.0
"""How long the role webhooks may take to begin a stream."""

_RECONNECT_MS = 3_000
_PARAMS = frozenset({"appkey", "team_id", "kind", "msgid", "label", "position"})

Responses = AsyncGenerator[WatchEventsResponse, None]


class EventsEndpoint:
    """Streams events; the `id` of an event is the position behind it, with which a program goes on."""

    def __init__(self, site: Site) -> None:
        self._site = site

    async def on_get(self, request: Request, response: Response) -> None:
        """Note the reading in the audit, and stream. HTTP 403: the token may not see the devices of the app or team.

        Errors of the role webhooks as for its call.
        """
        requester: Requester = request.context.requester
        asked = _asked(request)
        if not _may_read(requester, asked):
            raise falcon.HTTPForbidden
        self._site.feeds.check_free()
        for appkey in [asked.appkey] if asked.appkey else sorted(self._site.accounts.apps_of(asked.team_id)):
            await note_data_read(self._site, requester, appkey)
        role = WebhooksServiceStub(self._site.roles.peers.all("webhooks")[0])
        responses = cast(Responses, role.WatchEvents(_one(asked)))
        try:
            async with asyncio.timeout(_FIRST_S):
                first = await anext(responses)
        except TimeoutError:
            raise DeadlineError("the role webhooks did not answer in time") from None
        # Proxies such as nginx would otherwise keep the events until many have come together.
        response.set_header("X-Accel-Buffering", "no")
        response.sse = self._events(requester, asked, first, responses)

    async def _events(
        self, requester: Requester, asked: WatchEventsRequest, first: WatchEventsResponse, responses: Responses
    ) -> AsyncIterator[SSEvent]:
        async with aclosing(responses):
            yield SSEvent(event="position", event_id=position_text(first.position), text="-", retry=_RECONNECT_MS)
            until_ms = self._site.clock.now_ms() + LONGEST_MS
            with self._site.feeds.stream(requester.actor.name) as stream:
                reading = asyncio.ensure_future(anext(responses))
                ending = asyncio.ensure_future(stream.ending.wait())
                try:
                    while self._may_go_on(requester, asked) and self._site.clock.now_ms() < until_ms:
                        await asyncio.wait([reading, ending], timeout=HEARTBEAT_S, return_when=asyncio.FIRST_COMPLETED)
                        if ending.done():
                            return
                        if not reading.done():
                            yield SSEvent(comment="here")
                            continue
                        try:
                            response = reading.result()
                        except (CarillonError, StopAsyncIteration):
                            return  # the program connects again, and is told why it cannot
                        reading = asyncio.ensure_future(anext(responses))
                        for event in _written(response):
                            yield event
                finally:
                    for task in (reading, ending):
                        task.cancel()
                    await asyncio.wait([reading, ending])

    def _may_go_on(self, requester: Requester, asked: WatchEventsRequest) -> bool:
        """Return whether the token is valid still, and may see the devices."""
        is_valid = self._site.accounts.may_token_go_on(requester.actor.name, self._site.clock.now_ms())
        return is_valid and _may_read(requester, asked)


def _may_read(requester: Requester, asked: WatchEventsRequest) -> bool:
    """Return whether the token may see the devices of the app, or of the team."""
    if asked.team_id:
        return requester.may(Action.VIEW_DEVICES, asked.team_id)
    return requester.may_app(Action.VIEW_DEVICES, asked.appkey)


def position_text(position: bytes) -> str:
    """Return a position as a text for the `id` of an event."""
    return base64.urlsafe_b64encode(position).decode().rstrip("=")


def _written(response: WatchEventsResponse) -> Sequence[SSEvent]:
    """Return the events; the last one has the position, so that a program goes on behind all of them or none."""
    if not response.events_json:
        return [SSEvent(event="position", event_id=position_text(response.position), text="-")]
    *earlier, last = response.events_json
    return [
        *(SSEvent(event="event", data=event) for event in earlier),
        SSEvent(event="event", data=last, event_id=position_text(response.position)),
    ]


def _asked(request: Request) -> WatchEventsRequest:
    """Return what the request asks for. InputError: a parameter is wrong."""
    if unknown := request.params.keys() - _PARAMS:
        raise InputError(f"{min(unknown)}: there is no such parameter")
    appkey, team_id = request.get_param("appkey") or "", request.get_param("team_id") or ""
    if bool(appkey) == bool(team_id):
        raise InputError("appkey: name the app, or the team by team_id")
    given = request.get_header("Last-Event-ID") or request.get_param("position") or ""
    return WatchEventsRequest(
        appkey=appkey,
        team_id=team_id,
        kinds=[_kind(name) for name in request.get_param_as_list("kind") or ()],
        msgids=[_msgid(text) for text in request.get_param_as_list("msgid") or ()],
        labels=request.get_param_as_list("label") or (),
        position=_position(given),
    )


def _kind(name: str) -> "EventKind.ValueType":
    if name not in KINDS:
        raise InputError(f"kind: {name!r} is no type of event: {', '.join(KINDS)}")
    return KINDS[name]


def _msgid(text: str) -> int:
    msgid = whole_number(text, MAX_MSGID)
    if msgid is None:
        raise InputError("msgid: give message ids")
    return msgid


def _position(text: str) -> bytes:
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise InputError("position: give the id of an event of an earlier stream, or nothing") from None


async def _one(asked: WatchEventsRequest) -> AsyncIterator[WatchEventsRequest]:
    """Yield the one request, and leave the stream open."""
    yield asked
    await asyncio.Event().wait()
