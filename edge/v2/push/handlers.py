"""The endpoint of the v2 interface for pushes."""

from functools import partial
from zoneinfo import ZoneInfo

from falcon.asgi import Request, Response

from edge.core.answers import answer
from edge.core.authentication import Authenticator
from edge.core.idempotency import Idempotency, RequestedPushes
from edge.core.signature import AppRef
from edge.v2.apps import push_apps
from edge.v2.push.replies import push_reply
from edge.v2.push.requests import push_order
from protos.registry.v1.apps_pb2 import App
from services.domain.apps import AppDirectory
from services.runtime.errors import SignError
from services.runtime.process.clock import Clock


class PushEndpoint:
    """POST /v2/push"""

    def __init__(
        self,
        authenticator: Authenticator,
        apps: AppDirectory,
        idempotency: Idempotency,
        clock: Clock,
        zone: ZoneInfo,
        max_period_s: int,
    ) -> None:
        self._authenticator = authenticator
        self._apps = apps
        self._idempotency = idempotency
        self._clock = clock
        self._zone = zone
        self._max_period_s = max_period_s

    async def on_post(self, request: Request, response: Response) -> None:
        signed = await self._authenticator.authenticate(request, push_apps)
        apps = signed.apps

        def requested(raw: bytes) -> RequestedPushes:
            order = push_order(raw, apps, self._app, self._clock.now_ms(), self._zone, self._max_period_s)
            return RequestedPushes(order.pushes, partial(push_reply, order), order.due_ms)

        read = partial(signed.read, requested)
        reply = await self._idempotency.execute(request, apps.first.appkey, signed.origin, signed.text, read)
        answer(response, reply)

    def _app(self, ref: AppRef) -> App:
        app = self._apps.get(ref.appkey)
        if app is None:
            raise SignError("sign not correct")
        return app
