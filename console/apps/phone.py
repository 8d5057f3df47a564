"""The virtual phone: a page that is a device of an app, connected to a real gateway by the devices' SDK."""

import falcon
from falcon.asgi import Request, Response

from console.shell.middleware import POLICY_HEADER, content_security_policy
from console.shell.page import Page, visit_of
from console.shell.visit import Visit
from protos.registry.v1.apps_pb2 import PLATFORM_ANDROID


class PhonePage(Page):
    """GET shows the phone. Each browser tab is a device of its own, until it is closed."""

    async def on_get(self, request: Request, response: Response, appkey: str) -> None:
        app = self.app(appkey)
        if app.platform != PLATFORM_ANDROID:
            raise falcon.HTTPNotFound
        texts = _texts(visit_of(request))
        response.set_header(POLICY_HEADER, content_security_policy(self.site.gateway_url))
        self.show(request, response, "apps/phone.html", app=app, gateway_url=self.site.gateway_url, texts=texts)


def _texts(visit: Visit) -> dict[str, str]:
    """Return the texts of the script by name. The script fills in the names in braces."""
    return {
        "connecting": visit.gettext("Connecting…"),
        "online": visit.gettext("Online"),
        "offline": visit.gettext("Offline"),
        "lost": visit.gettext("No connection. The next attempt is in {seconds} s."),
        "ended": visit.gettext("The gateway does not accept this phone any more: {reason}."),
        "registered": visit.gettext("Registered as a new device"),
        "connected": visit.gettext("Connected"),
        "disconnected": visit.gettext("Connection ended: {reason}"),
        "shown": visit.gettext("Notification {msgid} shown"),
        "clicked": visit.gettext("Notification {msgid} clicked"),
        "dismissed": visit.gettext("Notification {msgid} dismissed"),
        "passed": visit.gettext("Message {msgid} given to the app: {content}"),
        "refused": visit.gettext("Not accepted: {reason}"),
        "saved": visit.gettext("Saved"),
        "none": visit.gettext("none"),
        "action0": "",
        "action1": visit.gettext("A click opens the app."),
        "action2": visit.gettext("A click opens {param}"),
        "action3": visit.gettext("A click starts the intent {param}"),
        "action4": visit.gettext("A click opens a landing page."),
        "action5": visit.gettext("A click opens a pop-up."),
        "action6": visit.gettext("A click opens an information flow."),
        "action7": visit.gettext("A click opens a rich-media page."),
        "action8": visit.gettext("A click downloads {param}"),
    }
