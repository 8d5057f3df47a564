"""The endpoints of the v2 door."""

import os
from zoneinfo import ZoneInfo

from falcon.asgi import Request, Response

from edge.core import canonical
from edge.core.answers import answer
from edge.core.body import read_body
from edge.core.push import Pushes
from edge.core.sign import AppRef, Gate
from edge.v2.apps import push_apps
from edge.v2.frames import DeviceDoor
from edge.v2.replies import push_reply
from edge.v2.requests import push_order
from protos.runtime.v1.log_pb2 import Origin
from services.runtime import device_protocol
from services.runtime.apps import AppDirectory
from services.runtime.clock import Clock
from services.runtime.errors import CarillonError, SignError


def origin(request: Request) -> Origin:
    """Through which door and from where the request came."""
    return Origin(door="v2", address=request.remote_addr, request_id=os.urandom(8).hex())


class PushEndpoint:
    """POST /v2/push"""

    def __init__(self, gate: Gate, apps: AppDirectory, pushes: Pushes, clock: Clock, zone: ZoneInfo) -> None:
        self._gate = gate
        self._apps = apps
        self._pushes = pushes
        self._clock = clock
        self._zone = zone

    async def on_post(self, request: Request, response: Response) -> None:
        signed = canonical.read(await read_body(request))
        apps = push_apps(signed.fields)
        await self._gate.admit(signed.text, signed.sign, apps.accepted)
        order = push_order(signed.raw, apps, self._default_period_s, self._clock.now_ms(), self._zone)
        if order.due_ms is None:
            receipts = await self._pushes.send(order.pushes, origin(request), signed.text)
            answer(response, push_reply(order, receipts))
        else:
            key, receipts = await self._pushes.schedule(order.pushes, order.due_ms, origin(request), signed.text)
            answer(response, push_reply(order, receipts, key))

    def _default_period_s(self, ref: AppRef) -> int:
        app = self._apps.get(ref.appkey)
        if app is None:
            raise SignError("sign not correct")
        return app.default_period_s


class DeviceEndpoint:
    """POST /device/v1: answers are frames, errors too."""

    def __init__(self, door: DeviceDoor) -> None:
        self._door = door

    async def on_post(self, request: Request, response: Response) -> None:
        payload = await read_body(request, device_protocol.MAX_FRAME_BYTES)
        response.context.result = 0
        try:
            frame = await self._door.answer(payload, origin(request))
        except CarillonError as error:
            response.context.result = error.result
            frame = device_protocol.error_answer(device_protocol.request_id(payload), error)
        response.data = device_protocol.encode(frame)
