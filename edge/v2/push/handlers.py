"""The endpoints of the v2 door that push, and the devices' own."""

from functools import partial
from zoneinfo import ZoneInfo

from falcon.asgi import Request, Response

from edge.core.answers import answer
from edge.core.idempotency import Idempotency, Wanted
from edge.core.origins import Origins
from edge.core.parsing.body import read_body
from edge.core.signature import AppRef
from edge.v2.apps import push_apps
from edge.v2.authentication import Reception
from edge.v2.device.frames import DeviceDoor
from edge.v2.push.replies import push_reply
from edge.v2.push.requests import push_order
from services.domain import device_protocol
from services.domain.apps import AppDirectory
from services.runtime.errors import CarillonError, SignError
from services.runtime.process.clock import Clock


class PushEndpoint:
    """POST /v2/push"""

    def __init__(
        self,
        reception: Reception,
        apps: AppDirectory,
        first_answers: Idempotency,
        clock: Clock,
        zone: ZoneInfo,
    ) -> None:
        self._reception = reception
        self._apps = apps
        self._first_answers = first_answers
        self._clock = clock
        self._zone = zone

    async def on_post(self, request: Request, response: Response) -> None:
        signed, apps, origin = await self._reception.admit(request, push_apps)

        def read() -> Wanted:
            order = push_order(signed.raw, apps, self._default_period_s, self._clock.now_ms(), self._zone)
            return Wanted(order.pushes, partial(push_reply, order), order.due_ms)

        answer(response, await self._first_answers.give(request, apps.first.appkey, origin, signed.text, read))

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
