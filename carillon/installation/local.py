"""The installation on this machine, or at the roles' addresses: its roles are called."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

import click

from carillon.commands.role_calls import call_all_instances, call_registry, call_role, command_origin
from console.apps.answers import (
    App,
    NewSecret,
    PauseChanged,
    ServiceState,
    app_answer,
    pause_answer,
    secret_answer,
    service_state,
    with_services,
)
from console.audit.answers import AppTimeline, DeviceAudit, PushAudit, device_answer, push_answer, timeline_answer
from protos.analytics.v1.analytics_pb2 import AuditAppRequest, AuditDeviceRequest, AuditPushRequest
from protos.analytics.v1.analytics_pb2_grpc import AnalyticsServiceStub
from protos.delivery.v1.delivery_pb2 import GetAppleStateRequest, GetAppleStateResponse
from protos.delivery.v1.delivery_pb2_grpc import AppleStateServiceStub
from protos.registry.v1.apps_pb2 import App as StoredApp
from protos.registry.v1.registry_pb2 import (
    GetAppRequest,
    GetAppResponse,
    ListAppsRequest,
    PauseAppsRequest,
    PauseAppsResponse,
    ResumeAppsRequest,
    ResumeAppsResponse,
    RotateSecretRequest,
    UpdateAppRequest,
    UpdateAppResponse,
)
from services.net.rpc.channel import Channel

if TYPE_CHECKING:
    from protos.analytics.v1.analytics_pb2_grpc import AnalyticsServiceAsyncStub
    from protos.registry.v1.registry_pb2_grpc import RegistryServiceAsyncStub

_TIMEOUT_S = 30.0
_APPLE_STATE_S = 5.0
_PAGE = 500

Answer = TypeVar("Answer")


class LocalInstallation:
    """The installation whose roles are called directly, as an operator."""

    def apps(self) -> Sequence[App]:
        answer = call_registry(lambda registry: registry.ListApps(ListAppsRequest()))
        pause = answer.installation_pause if answer.HasField("installation_pause") else None
        return [app_answer(app, pause, _now_ms()) for app in answer.apps]

    def app(self, appkey: str) -> App:
        answer = call_registry(lambda registry: registry.GetApp(GetAppRequest(appkey=appkey)))
        return with_services(local_app(answer), _services(answer.app))

    def change_app(self, change: UpdateAppRequest) -> App:
        change.origin.CopyFrom(command_origin())
        return local_app(call_registry(lambda registry: registry.UpdateApp(change)))

    def rotate_secret(self, appkey: str, keep_old_s: int) -> NewSecret:
        request = RotateSecretRequest(appkey=appkey, keep_old_s=keep_old_s, origin=command_origin())
        answer = call_registry(lambda registry: registry.RotateSecret(request))
        return secret_answer(answer.app, answer.secret_key)

    def pause(self, appkey: str, reason: str) -> PauseChanged:
        request = PauseAppsRequest(appkey=appkey, all_apps=not appkey, reason=reason, origin=command_origin())

        async def both(registry: "RegistryServiceAsyncStub") -> tuple[PauseAppsResponse, bool]:
            return await registry.PauseApps(request), await _are_all_paused(registry)

        answer, all_paused = call_registry(both)
        return PauseChanged(not answer.already_paused, pause_answer(answer.pause), list(answer.unconfirmed), all_paused)

    def resume(self, appkey: str, reason: str) -> PauseChanged:
        request = ResumeAppsRequest(appkey=appkey, all_apps=not appkey, reason=reason, origin=command_origin())

        async def both(registry: "RegistryServiceAsyncStub") -> tuple[ResumeAppsResponse, bool]:
            return await registry.ResumeApps(request), await _are_all_paused(registry)

        answer, all_paused = call_registry(both)
        ended = pause_answer(answer.ended) if answer.HasField("ended") else None
        return PauseChanged(ended is not None, ended, list(answer.unconfirmed), all_paused)

    def audit_push(self, msgid: int, token: str, *, allow_behind: bool) -> PushAudit:
        request = AuditPushRequest(msgid=msgid, token=token, allow_behind=allow_behind)
        return push_answer(_analytics(lambda analytics: analytics.AuditPush(request, timeout=_TIMEOUT_S)))

    def audit_device(self, appkey: str, token: str, *, allow_behind: bool) -> DeviceAudit:
        request = AuditDeviceRequest(appkey=appkey, token=token, allow_behind=allow_behind)
        return device_answer(_analytics(lambda analytics: analytics.AuditDevice(request, timeout=_TIMEOUT_S)))

    def audit_app(self, appkey: str, from_ms: int, to_ms: int, *, allow_behind: bool) -> Iterator[AppTimeline]:
        request = AuditAppRequest(appkey=appkey, from_ms=from_ms, to_ms=to_ms, limit=_PAGE, allow_behind=allow_behind)
        while True:
            page = _analytics(lambda analytics: analytics.AuditApp(request, timeout=_TIMEOUT_S))
            yield AppTimeline(timeline_answer(page.timeline), page.pos, page.records_behind)
            if not page.pos:
                return
            request.pos = page.pos


def local_app(answer: GetAppResponse | UpdateAppResponse) -> App:
    """Return the app of a registry's answer."""
    pause = answer.installation_pause if answer.HasField("installation_pause") else None
    return app_answer(answer.app, pause, _now_ms())


def _services(app: StoredApp) -> ServiceState | None:
    """Return what delivery knows of the push services of an app; None: it does not answer."""
    request = GetAppleStateRequest(appkey=app.appkey)

    async def ask(channels: Sequence[Channel]) -> list[GetAppleStateResponse]:
        stubs = [AppleStateServiceStub(channel) for channel in channels]
        return await asyncio.gather(*(stub.GetAppleState(request, timeout=_APPLE_STATE_S) for stub in stubs))

    try:
        return service_state(app, call_all_instances("delivery", ask))
    except click.ClickException:
        return None


async def _are_all_paused(registry: "RegistryServiceAsyncStub") -> bool:
    return (await registry.ListApps(ListAppsRequest())).HasField("installation_pause")


def _analytics(call: "Callable[[AnalyticsServiceAsyncStub], Awaitable[Answer]]") -> Answer:
    async def with_stub(channel: Channel) -> Answer:
        return await call(AnalyticsServiceStub(channel))

    return call_role("analytics", with_stub)


def _now_ms() -> int:
    return int(time.time() * 1000)
