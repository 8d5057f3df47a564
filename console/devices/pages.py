"""Devices: found by token or alias, with record, messages and history."""

from urllib.parse import urlencode

from falcon.asgi import Request, Response

from console.devices.actions import (
    devices_in_state,
    erase_person,
    find_devices,
    history_of,
    list_addresses,
    list_erasures,
    messages_of,
    note_data_read,
)
from console.devices.answers import device_record, listed_address
from console.people.changes import shown_erasures
from console.shell.page import Page, go_to, unknown_app, visit_of
from services.domain.permissions import Action

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

MAX_ROWS = 50


class DevicesPage(Page):
    """GET shows the form, and goes on to the device that it asks for."""

    async def on_get(self, request: Request, response: Response) -> None:
        visit = visit_of(request)
        appkey, name = request.get_param("appkey") or "", (request.get_param("name") or "").strip()
        apps = [app for app in self.visible_apps(visit) if visit.may_app(Action.VIEW_DEVICES, app.appkey)]
        problem = unknown_app(visit, appkey, apps)
        if appkey and name and not problem:
            raise go_to(f"/apps/{appkey}/device?{urlencode({'name': name})}")
        status = 404 if problem else 200
        self.show(request, response, "devices/find.html", status, apps=apps, appkey=appkey, name=name, problem=problem)


class DevicePage(Page):
    """GET shows the device with a token, or the devices with an alias, the most recently active first."""

    async def on_get(self, request: Request, response: Response, appkey: str) -> None:
        app = self.app(appkey)
        name = (request.get_param("name") or "").strip()
        await note_data_read(self.site, visit_of(request), appkey, name)
        devices = await find_devices(self.site, appkey, name)
        if len(devices) != 1:
            status = 200 if devices else 404
            may_erase = visit_of(request).may_app(Action.ERASE_PERSON, appkey)
            shown = {"app": app, "name": name, "devices": devices, "may_erase": may_erase}
            self.show(request, response, "devices/several.html", status, **shown)
            return
        (device,) = devices
        history = await history_of(self.site, appkey, device.token)
        timeline = list(history.timeline)
        self.show(
            request,
            response,
            "devices/device.html",
            app=app,
            device=device,
            record=device_record(device),
            attributes=[(name, value) for name in ATTRIBUTES if (value := getattr(device.attributes, name))],
            timeline=timeline[::-1],
            messages=messages_of(timeline, self.site.clock.now_ms()),
            connection=next((entry for entry in timeline[::-1] if entry.event in ("connected", "disconnected")), None),
            records_behind=history.records_behind,
            may_export=visit_of(request).may_app(Action.EXPORT_PERSON, appkey),
            may_erase=visit_of(request).may_app(Action.ERASE_PERSON, appkey),
        )


class ErasuresPage(Page):
    """GET lists the erasures of an app; POST erases the devices with an alias, or the one with a token."""

    async def on_get(self, request: Request, response: Response, appkey: str) -> None:
        app, after = self.app(appkey), request.get_param("after") or ""
        page = await list_erasures(self.site, app.appkey, after, MAX_ROWS)
        self.show(
            request,
            response,
            "devices/erasures.html",
            app=app,
            rows=[(erasure, self.site.accounts.name_of(erasure.actor)) for erasure in page.erasures],
            after=after,
            following=page.next,
            changes=await shown_erasures(self.site, visit_of(request), app.appkey),
            team_id=self.site.accounts.team_of(app.appkey),
        )

    async def on_post(self, request: Request, response: Response, appkey: str) -> None:
        app, visit = self.app(appkey), visit_of(request)
        alias, token = visit.form.get("alias", ""), visit.form.get("token", "")
        erased = await erase_person(self.site, visit, app.appkey, alias=alias, token=token)
        visit.notify(
            visit.gettext(
                "Nothing is erased yet: it waits until another administrator of the team or of the installation"
                " confirms it."
            )
            if erased.HasField("pending")
            else visit.gettext("The person is erased. Each role forgets now what it keeps.")
        )
        raise go_to(f"/apps/{app.appkey}/erasures")


class DeadAddressesPage(Page):
    """GET lists the app's dead addresses, the latest first; `after` is where a further page starts."""

    async def on_get(self, request: Request, response: Response, appkey: str) -> None:
        app, visit, after = self.app(appkey), visit_of(request), request.get_param("after") or ""
        page = await list_addresses(self.site, visit, appkey, "", after, MAX_ROWS, dead=True)
        self.show(
            request,
            response,
            "devices/addresses.html",
            app=app,
            addresses=[listed_address(each) for each in page.addresses],
            after=after,
            following=page.following,
        )


class PushDevicesPage(Page):
    """GET lists the devices of a push that are in `state` for `reason`; `after` is where a further page starts.

    With `category`, only those that had the value `info` of it.
    """

    async def on_get(self, request: Request, response: Response, appkey: str, msgid: str) -> None:
        app, visit = self.app(appkey), visit_of(request)
        names = ("state", "reason", "category", "info", "after")
        state, reason, category, info, after = (request.get_param(name) or "" for name in names)
        page = await devices_in_state(
            *(self.site, visit, appkey, msgid, state, reason),
            pos=after,
            limit=MAX_ROWS,
            category=category,
            info=info,
        )
        self.show(
            request,
            response,
            "pushes/devices.html",
            app=app,
            msgid=int(msgid),
            state=state,
            reason=reason,
            category=category,
            info=info,
            asked={"state": state, "reason": reason, "category": category, "info": info},
            devices=page.devices,
            has_several_msgids=len({device.msgid for device in page.devices} | {int(msgid)}) > 1,
            after=after,
            following=page.pos,
            records_behind=page.records_behind,
        )
