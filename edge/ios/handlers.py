"""The endpoints of the legacy iOS interface."""

from functools import partial

from falcon.asgi import Request, Response

from edge.core.answers import Done, answer
from edge.core.authentication import AppAuthenticator
from edge.core.idempotency import Idempotency, RequestedPushes
from edge.ios.registrations import Registrations
from edge.ios.replies import push_reply
from edge.ios.requests import named_token, push_order


class PushEndpoint:
    """POST /push"""

    def __init__(self, authenticator: AppAuthenticator, idempotency: Idempotency) -> None:
        self._authenticator = authenticator
        self._idempotency = idempotency

    async def on_post(self, request: Request, response: Response) -> None:
        signed = await self._authenticator.authenticate(request)

        def requested(raw: bytes) -> RequestedPushes:
            pushes = push_order(raw, signed.app)
            return RequestedPushes(pushes, lambda results, _: push_reply(pushes, results))

        read = partial(signed.read, requested)
        reply = await self._idempotency.execute(request, signed.app.appkey, signed.origin, signed.text, read)
        answer(response, reply)


class RegisterEndpoint:
    """POST and DELETE /register"""

    def __init__(self, authenticator: AppAuthenticator, registrations: Registrations) -> None:
        self._authenticator = authenticator
        self._registrations = registrations

    async def on_post(self, request: Request, response: Response) -> None:
        signed = await self._authenticator.authenticate(request)
        await self._registrations.register(signed.ref, await signed.read(named_token), signed.origin)
        answer(response, Done(result=0, desc="add token done"))

    async def on_delete(self, request: Request, response: Response) -> None:
        signed = await self._authenticator.authenticate(request)
        await self._registrations.remove(signed.ref, await signed.read(named_token), signed.origin)
        answer(response, Done(result=0, desc="delete token done"))
