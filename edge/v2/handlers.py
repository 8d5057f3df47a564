"""The endpoints of the v2 door."""

import itertools
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


class Origins:
    """Through which door and from where a request came; ids of requests are this process's own number and a count."""

    def __init__(self) -> None:
        self._process = os.urandom(6).hex()
        self._count = itertools.count(1)

    def of(self, request: Request) -> Origin:
        return Origin(door="v2", address=request.remote_addr, request_id=f"{self._process}-{next(self._count)}")


class PushEndpoint:
    """POST /v2/push"""

    def __init__(
        self, gate: Gate, apps: AppDirectory, pushes: Pushes, clock: Clock, zone: ZoneInfo, origins: Origins
    ) -> None:
        self._gate = gate
        self._apps = apps
        self._pushes = pushes
        self._clock = clock
        self._zone = zone
        self._origins = origins

    async def on_post(self, request: Request, response: Response) -> None:
        signed = canonical.read(await read_body(request))
        apps = push_apps(signed.fields)
        await self._gate.admit(signed.text, signed.sign, apps.accepted)
        order = push_order(signed.raw, apps, self._default_period_s, self._clock.now_ms(), self._zone)
        if order.due_ms is None:
            receipts = await self._pushes.send(order.pushes, self._origins.of(request), signed.text)
            answer(response, push_reply(order, receipts))
        else:
            key, receipts = await self._pushes.schedule(
                order.pushes, order.due_ms, self._origins.of(request), signed.text
            )
            answer(response, push_reply(order, receipts, key))

    def _default_period_s(self, ref: AppRef) -> int:
        app = self._apps.get(ref.appkey)
        if app is None:
            raise SignError("sign not correct")
        return app.default_period_s


class DeviceEndpoint:
    """POST /device/v1: answers are frames, errors too."""

    def __init__(self, door: DeviceDoor, origins: Origins) -> None:
        self._door = door
        self._origins = origins

    async def on_post(self, request: Request, response: Response) -> None:
        payload = await read_body(request, device_protocol.MAX_FRAME_BYTES)
        response.context.result = 0
        try:
            frame = await self._door.answer(payload, self._origins.of(request))
        except CarillonError as error:
            response.context.result = error.result
            frame = device_protocol.error_answer(device_protocol.request_id(payload), error)
        response.data = device_protocol.encode(frame)
