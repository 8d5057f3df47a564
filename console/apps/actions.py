"""Changes of an app: its settings, another secret key, a pause and its end; and what Apple's answers say of it."""

import asyncio
from collections.abc import Iterable

from console.apps.answers import ServiceState, service_state
from console.shell.access import Requester
from console.shell.backend import Backend
from protos.delivery.v1.delivery_pb2 import GetAppleStateRequest, GetAppleStateResponse
from protos.delivery.v1.delivery_pb2_grpc import AppleStateServiceStub
from protos.registry.v1.apps_pb2 import App
from protos.registry.v1.registry_pb2 import (
    PauseAppsRequest,
    PauseAppsResponse,
    ResumeAppsRequest,
    ResumeAppsResponse,
    RotateSecretRequest,
    RotateSecretResponse,
    UpdateAppRequest,
    UpdateAppResponse,
)
from services.errors import CarillonError

_APPLE_STATE_S = 2.0
"""How long a page waits for what delivery knows of Apple's answers, seconds."""


async def services_of(backend: Backend, app: App) -> ServiceState | None:
    """Return what delivery knows of the push services of an app; None: it does not answer."""
    states = await _states(backend, app.appkey)
    return None if states is None else service_state(app, states)


async def simulators_of(backend: Backend, apps: Iterable[App]) -> list[str]:
    """Return the channels of the apps in the place of whose services a simulator answers; none if delivery is away."""
    states = await _states(backend) or []
    return list(dict.fromkeys(channel for app in apps for channel in service_state(app, states).simulators))


async def _states(backend: Backend, appkey: str = "") -> list[GetAppleStateResponse] | None:
    """Return what each instance of delivery answers about an app, or about none; None: one does not answer."""
    request = GetAppleStateRequest(appkey=appkey)
    stubs = [AppleStateServiceStub(channel) for channel in backend.roles.peers.all("delivery")]
    try:
        return await asyncio.gather(*(stub.GetAppleState(request, timeout=_APPLE_STATE_S) for stub in stubs))
    except CarillonError:
        return None


async def rotate_secret(
    backend: Backend, requester: Requester, appkey: str, keep_old_s: int, replaces_digest: bytes | None = None
) -> RotateSecretResponse:
    """Give the app another secret key; the present one signs for `keep_old_s` more seconds.

    ConflictError: the present one has another digest than `replaces_digest`.
    """
    asked = RotateSecretRequest(
        appkey=appkey, keep_old_s=keep_old_s, replaces_digest=replaces_digest, origin=requester.origin
    )
    rotated = await backend.roles.registry.RotateSecret(asked)
    await backend.apps.refresh()
    return rotated


async def pause_app(backend: Backend, requester: Requester, appkey: str, reason: str) -> PauseAppsResponse:
    """Pause the app. `unconfirmed` in the answer: roles that have not confirmed it in time."""
    asked = PauseAppsRequest(appkey=appkey, reason=reason, origin=requester.origin)
    paused = await backend.roles.registry.PauseApps(asked)
    await backend.apps.refresh()
    return paused


async def resume_app(backend: Backend, requester: Requester, appkey: str, reason: str) -> ResumeAppsResponse:
    """End the pause of the app. `unconfirmed` as for `pause_app`."""
    asked = ResumeAppsRequest(appkey=appkey, reason=reason, origin=requester.origin)
    resumed = await backend.roles.registry.ResumeApps(asked)
    await backend.apps.refresh()
    return resumed


async def change_app(backend: Backend, requester: Requester, change: UpdateAppRequest) -> UpdateAppResponse:
    """Change settings of the app that the request names; those that it does not name stay."""
    change.origin.CopyFrom(requester.origin)
    changed = await backend.roles.registry.UpdateApp(change)
    await backend.apps.refresh()
    return changed
