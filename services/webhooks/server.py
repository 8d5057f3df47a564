"""WebhooksService: the state of receivers, test events, and events that are sent again."""

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing

from protos.webhooks.v1.webhooks_pb2 import (
    Attempt,
    ListAttemptsRequest,
    ListAttemptsResponse,
    ListStatesRequest,
    ListStatesResponse,
    ResendRequest,
    ResendResponse,
    SendTestRequest,
    SendTestResponse,
    WatchEventsRequest,
    WatchEventsResponse,
)
from protos.webhooks.v1.webhooks_pb2_grpc import WebhooksServiceServicer
from services.domain import ids
from services.domain.text import check_texts
from services.domain.webhooks import scope_of
from services.errors import InputError
from services.net.rpc.server import Context
from services.process.clock import Clock
from services.webhooks import store
from services.webhooks.event_streams import EventStreams
from services.webhooks.receivers import Receiver
from services.webhooks.service import WebhookService

MAX_RESENT_MS = 31 * 86_400_000
"""Longest time whose events one call sends again."""


class WebhooksServicer(WebhooksServiceServicer):
    """Answers the role's calls."""

    def __init__(
        self, service: WebhookService, streams: EventStreams, new_receiver: Callable[[], Receiver], clock: Clock
    ) -> None:
        self._service = service
        self._streams = streams
        self._new_receiver = new_receiver
        self._clock = clock

    async def ListStates(self, request: ListStatesRequest, context: Context) -> ListStatesResponse:
        check_texts(request)
        return ListStatesResponse(states=self._service.states(scope_of(request.appkey, request.team_id)))

    async def ListAttempts(self, request: ListAttemptsRequest, context: Context) -> ListAttemptsResponse:
        check_texts(request)
        self._service.sender_of(scope_of(request.appkey, request.team_id), request.webhook_id)
        return ListAttemptsResponse(attempts=map(_attempt, await self._service.attempts(request.webhook_id)))

    async def SendTest(self, request: SendTestRequest, context: Context) -> SendTestResponse:
        check_texts(request)
        sender = self._service.sender_of(scope_of(request.appkey, request.team_id), request.webhook_id)
        attempt, taken = await sender.send_test(self._new_receiver(), ids.event_id().hex())
        return SendTestResponse(attempt=_attempt(attempt), taken=taken)

    async def Resend(self, request: ResendRequest, context: Context) -> ResendResponse:
        check_texts(request)
        sender = self._service.sender_of(scope_of(request.appkey, request.team_id), request.webhook_id)
        if not 0 <= request.from_ms < request.until_ms <= self._clock.now_ms():
            raise InputError("the time to send again must end after it begins, and not in the future")
        if request.until_ms - request.from_ms > MAX_RESENT_MS:
            raise InputError(f"the time to send again is {MAX_RESENT_MS // 86_400_000} days at most")
        await self._service.resend(sender, request.from_ms, request.until_ms)
        return ResendResponse()

    async def WatchEvents(
        self, requests: AsyncIterator[WatchEventsRequest], context: Context
    ) -> AsyncGenerator[WatchEventsResponse, None]:
        request = await anext(requests)
        check_texts(request)
        async with aclosing(self._streams.watch(request)) as responses:
            async for response in responses:
                yield response


def _attempt(attempt: store.DeliveryAttempt) -> Attempt:
    return Attempt(**attempt._asdict())
