"""Test devices: the devices of a team to which a push is sent first, and the sending to them."""

from collections.abc import Sequence

import msgspec
from falcon.asgi import Request, Response

from console.devices.actions import find_devices
from console.send.actions import approval_need, key_of_push, read_push
from console.send.composed_pushes import ComposedPush
from console.send.forms import Body
from console.send.page import SendingPage, words_of_old_key, words_of_unknown_size
from console.shell.page import AWAY, Page, go_to, problem_of, visit_of
from console.shell.visit import Visit
from protos.accounts.v1.accounts_pb2 import TeamDevice
from protos.accounts.v1.service_pb2 import SetTestDevicesRequest
from services.errors import CarillonError

# A push to the test devices of a team alone, in place of its audience.

_TIMES = ("timed", "send_time", "send_time_interval")


def for_test_devices(composed: ComposedPush, devices: Sequence[TeamDevice]) -> Body:
    """Return the request for the same message to these devices, at once. Each belongs to an app of the push."""
    body: Body = msgspec.json.decode(composed.text)
    apps = composed.order.apps
    android = [device.token for device in devices if apps.android and device.appkey == apps.android.appkey]
    ios = [device.token for device in devices if apps.ios and device.appkey == apps.ios[0].appkey]
    tokens = {platform: found for platform, found in (("android", android), ("ios", ios)) if found}
    body["sendTo"] = {"appkey": body["sendTo"]["appkey"], "userScope": 5, "token": tokens}
    return _without_times(body)


def at_once(text: str) -> str:
    """Return the text of a request without the time of sending. A text that is no request stays as it is."""
    try:
        body = msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text
    return msgspec.json.encode(_without_times(body)).decode() if isinstance(body, dict) else text


def _without_times(body: Body) -> Body:
    option = body.get("option")
    if isinstance(option, dict):
        body["option"] = {name: value for name, value in option.items() if name not in _TIMES}
    return body


class TestDevicesPage(Page):
    """GET lists the test devices of an app; POST adds those with an alias or a token, or removes one."""

    async def on_get(self, request: Request, response: Response, appkey: str) -> None:
        self._show(request, response, appkey)

    async def on_post(self, request: Request, response: Response, appkey: str) -> None:
        visit = visit_of(request)
        if removed := visit.form.get("remove", ""):
            await self._set(visit, [TeamDevice(appkey=appkey, token=removed)])
        else:
            found = [
                device for device in await find_devices(self.site, appkey, self._sought(visit)) if not device.removed_ms
            ]
            if not found:
                self._show(request, response, appkey, visit.gettext("The app has no device with this alias or token."))
                return
            label = visit.form.get("label", "").strip()
            try:
                await self._set(
                    visit,
                    [
                        TeamDevice(appkey=appkey, token=each.token, name=label or each.alias or each.token[:20])
                        for each in found
                    ],
                )
            except CarillonError as error:
                self._show(request, response, appkey, problem_of(error, visit))
                return
        await self.site.accounts.refresh()
        raise go_to(f"/apps/{appkey}/test-devices")

    async def _set(self, visit: Visit, devices: Sequence[TeamDevice]) -> None:
        team_id = self.site.accounts.team_of(devices[0].appkey)
        asked = SetTestDevicesRequest(team_id=team_id, devices=devices, origin=visit.origin)
        await self.site.roles.accounts.SetTestDevices(asked)

    def _sought(self, visit: Visit) -> str:
        return visit.form.get("device", "").strip()

    def _show(self, request: Request, response: Response, appkey: str, problem: str = "") -> None:
        team = self.site.accounts.team(self.site.accounts.team_of(appkey))
        self.show(
            request,
            response,
            "send/test_devices.html",
            400 if problem else 200,
            app=self.app(appkey),
            team=team,
            devices=[device for device in team.test_devices if device.appkey == appkey] if team else [],
            form=visit_of(request).form,
            problem=problem,
        )


class SendToTestDevicesPage(SendingPage):
    """POST sends a composed push to the test devices alone, and shows its review again."""

    async def on_post(self, request: Request, response: Response, appkey: str) -> None:
        visit = visit_of(request)
        app = self.app(appkey)
        try:
            composed = read_push(self.site, visit, app, visit.form.get("body", ""))
            problem = await self._send(visit, composed)
        except CarillonError as error:
            self.show_failure(request, response, app, error, may_be_sent=True)
            return
        try:
            await self.show_review(request, response, app, composed, problem)
        except AWAY:
            self.show_form(
                request,
                response,
                app,
                self.form_again(visit, app, composed.text),
                problem or words_of_unknown_size(visit),
            )

    async def _send(self, visit: Visit, composed: ComposedPush) -> str:
        """Send the push to the test devices; return why it was not sent, or ""."""
        key = visit.form.get("key", "")
        devices = self.test_devices(composed)
        if not self.site.composed_pushes.is_valid(key):
            return words_of_old_key(visit)
        if not devices:
            return visit.gettext("The team has no test devices of this app.")
        push = self.site.composed_pushes.read(for_test_devices(composed, devices))
        test_key = f"test {key}"
        if await approval_need(self.site, visit, push, key_of_push(visit, push, test_key)) is not None:
            return visit.gettext("The team wants an approval even for a push to its test devices.")
        await self.site.composed_pushes.send(push, test_key, visit.origin)
        visit.notify(
            visit.gettext("Sent to the test devices: %(names)s.") % {"names": ", ".join(d.name for d in devices)}
        )
        return ""
