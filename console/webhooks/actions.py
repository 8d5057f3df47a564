"""Changes of webhooks at the registry, and what the role webhooks knows and does."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from console.shell.access import Requester
from console.shell.backend import Backend, app_of, team_of
from protos.registry.v1.apps_pb2 import Webhook
from protos.registry.v1.registry_pb2 import ChangeWebhookRequest, ChangeWebhookResponse
from protos.webhooks.v1.webhooks_pb2 import (
    Attempt,
    ListAttemptsRequest,
    ListStatesRequest,
    ResendRequest,
    SendTestRequest,
    SendTestResponse,
    WebhookState,
)
from protos.webhooks.v1.webhooks_pb2_grpc import WebhooksServiceStub
from services.errors import CarillonError

if TYPE_CHECKING:
    from protos.webhooks.v1.webhooks_pb2_grpc import WebhooksServiceAsyncStub

_STATES_S = 2.0
"""How long a page waits for the states of webhooks, seconds."""

_TEST_S = 20.0
"""How long a test event may take: the receiver has ten seconds to answer, and five for the connection."""


class WebhookOwner(NamedTuple):
    """The app or the team whose webhooks are asked for; the other field is empty."""

    appkey: str = ""
    team_id: str = ""


def webhooks_of(backend: Backend, subscriber: WebhookOwner) -> Sequence[Webhook]:
    """Return the webhooks of an app or a team. HTTP 404: there is no such app; NotFoundError: no such team."""
    if subscriber.team_id:
        return backend.apps.webhooks_of_team(team_of(backend, subscriber.team_id).team_id)
    return app_of(backend, subscriber.appkey).webhooks


async def change_webhook(
    backend: Backend, requester: Requester, request: ChangeWebhookRequest
) -> ChangeWebhookResponse:
    """Make, change or remove a webhook of an app or a team. Errors as for the registry's call."""
    request.origin.CopyFrom(requester.origin)
    changed = await backend.roles.registry.ChangeWebhook(request)
    await backend.apps.refresh()
    return changed


async def states(backend: Backend, subscriber: WebhookOwner) -> Mapping[str, WebhookState]:
    """Return the states of the webhooks by their ids; none while the role webhooks does not answer."""
    try:
        answer = await _role(backend).ListStates(ListStatesRequest(**subscriber._asdict()), timeout=_STATES_S)
    except CarillonError:
        return {}
    return {state.webhook_id: state for state in answer.states}


async def attempts(backend: Backend, subscriber: WebhookOwner, webhook_id: str) -> Sequence[Attempt]:
    """Return the latest requests to a receiver. NotFoundError: there is no such webhook, or it was made just now."""
    request = ListAttemptsRequest(**subscriber._asdict(), webhook_id=webhook_id)
    return (await _role(backend).ListAttempts(request)).attempts


async def send_test(backend: Backend, subscriber: WebhookOwner, webhook_id: str) -> SendTestResponse:
    """Send a test event. NotFoundError as for `attempts`."""
    request = SendTestRequest(**subscriber._asdict(), webhook_id=webhook_id)
    return await _role(backend).SendTest(request, timeout=_TEST_S)


async def resend(backend: Backend, subscriber: WebhookOwner, webhook_id: str, from_ms: int, until_ms: int) -> None:
    """Send the events of a time again. NotFoundError as for `attempts`; other errors as for the role's call."""
    request = ResendRequest(**subscriber._asdict(), webhook_id=webhook_id, from_ms=from_ms, until_ms=until_ms)
    await _role(backend).Resend(request)


def _role(backend: Backend) -> "WebhooksServiceAsyncStub":
    return WebhooksServiceStub(backend.roles.peers.all("webhooks")[0])
