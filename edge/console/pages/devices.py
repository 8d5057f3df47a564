"""Devices: found by token or alias, with record, messages and history."""

import asyncio
from typing import NamedTuple
from urllib.parse import urlencode

from falcon.asgi import Request, Response

from edge.console.pages.audit import note_data_read
from edge.console.pages.page import Page, Site, go_to, visit_of
from edge.console.roles import ANALYTICS_S
from edge.console.view.explanation import ENDED, GOT
from protos.analytics.v1.analytics_pb2 import AuditDeviceRequest, TimelineEntry
from protos.registry.v1.devices_pb2 import Device
from protos.registry.v1.registry_pb2 import FindAliasesRequest, GetDevicesRequest
from protos.registry.v1.registry_pb2_grpc import RegistryServiceStub
from services.domain.accounts.permissions import Action
from services.domain.ios_tokens import spellings
from services.domain.topics import device_key
from services.runtime.errors import NotFoundError
from services.runtime.log.topics import partition_of

MAX_NAME = 400
ATTRIBUTES = (
    "region",
    "carrier",
    "channel",
    "brand",
    "model",
    "os_version",
    "app_version",
    "sdk_version",
    "resolution",
)


class DeviceMessage(NamedTuple):
    """What the history says of one message: the latest event, and whether the device still waits for it."""

    msgid: int
    event: str
    time_ms: int
    is_waiting: bool


class DevicesPage(Page):
    """GET shows the form, and goes on to the device that it asks for."""

    async def on_get(self, request: Request, response: Response) -> None:
        visit = visit_of(request)
        appkey, name = request.get_param("appkey") or "", (request.get_param("name") or "").strip()
        if self.site.apps.get(appkey) and name:
            raise go_to(f"/apps/{appkey}/device?{urlencode({'name': name})}")
        apps = [app for app in self.visible_apps(visit) if visit.may_app(Action.VIEW_DEVICES, app.appkey)]
        self.show(request, response, "devices/find.html", apps=apps)


class DevicePage(Page):
    """GET shows the device with a token, or the devices with an alias, the most recently active first."""

    async def on_get(self, request: Request, response: Response, appkey: str) -> None:
        app = self.app(appkey)
        name = (request.get_param("name") or "").strip()
        await note_data_read(self, visit_of(request), appkey, name)
        devices = await find_devices(self.site, appkey, name)
        if len(devices) != 1:
            status = 200 if devices else 404
            self.show(request, response, "devices/several.html", status, app=app, name=name, devices=devices)
            return
        (device,) = devices
        asked = AuditDeviceRequest(appkey=appkey, token=device.token, allow_behind=True)
        try:
            history = await self.site.roles.analytics.AuditDevice(asked, timeout=ANALYTICS_S)
            timeline, behind = list(history.timeline), history.records_behind
        except NotFoundError:
            timeline, behind = [], 0
        self.show(
            request,
            response,
            "devices/device.html",
            app=app,
            device=device,
            attributes=[(name, value) for name in ATTRIBUTES if (value := getattr(device.attributes, name))],
            timeline=timeline[::-1],
            messages=messages_of(timeline),
            connection=next((entry for entry in timeline[::-1] if entry.event in ("connected", "disconnected")), None),
            records_behind=behind,
        )


async def find_devices(site: Site, appkey: str, name: str) -> list[Device]:
    """Return the device with this token, removed ones too, or else the devices with this alias."""
    if not name or len(name) > MAX_NAME or not name.isprintable():
        return []
    for token in spellings(name):
        if devices := await _devices(site, appkey, token):
            return devices
    registries = site.roles.peers.all("registry")
    owner = registries[partition_of(device_key(appkey, name), len(registries))]
    asked = FindAliasesRequest(appkey=appkey, aliases=[name])
    (answer,) = (await RegistryServiceStub(owner).FindAliases(asked)).aliases
    found = await asyncio.gather(*(_devices(site, appkey, entry.token) for entry in answer.devices))
    return [device for devices in found for device in devices]


async def _devices(site: Site, appkey: str, token: str) -> list[Device]:
    partition = partition_of(device_key(appkey, token), site.roles.partitions)
    registry = RegistryServiceStub(site.roles.peers.owner("registry", partition))
    return list((await registry.GetDevices(GetDevicesRequest(appkey=appkey, tokens=[token]))).devices)


def messages_of(timeline: list[TimelineEntry]) -> list[DeviceMessage]:
    """Return the messages in a device's history, the newest first."""
    events: dict[int, dict[str, int]] = {}
    for entry in timeline:
        kind, _, rest = entry.detail.partition(" ")
        number = rest.partition(",")[0]
        if kind in ("push", "message") and number.isdecimal():
            events.setdefault(int(number), {})[entry.event] = entry.last_ms
    return [_message(msgid, events[msgid]) for msgid in sorted(events, reverse=True)]


def _message(msgid: int, events: dict[str, int]) -> DeviceMessage:
    event = next(name for name in (*GOT, *ENDED, "sent", "audience", *events) if name in events)
    return DeviceMessage(msgid, event, events[event], is_waiting=event in ("sent", "audience"))
