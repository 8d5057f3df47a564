"""The virtual phone: a page that is a device of an app, connected to a real gateway by the devices' SDK."""

import falcon
from falcon.asgi import Request, Response

from console.apps.actions import services_of
from console.shell.middleware import POLICY_HEADER, content_security_policy
from console.shell.page import Page, visit_of
from console.shell.visit import Visit
from protos.registry.v1.apps_pb2 import CHANNEL_WEBPUSH, PLATFORM_ANDROID, App
from services.domain.addresses import service_name
from services.domain.channel_credentials.webpush import public_key_of
from services.domain.permissions import Action

WORKER_PATH = "/apps/{appkey}/phone/worker"
_CHANNEL = service_name(CHANNEL_WEBPUSH)


class PhonePage(Page):
    """GET shows the phone. Each browser tab is a device of its own, until it is closed.

    One phone of a browser may subscribe to Web Push, and then goes on without a page.
    """

    async def on_get(self, request: Request, response: Response, appkey: str) -> None:
        app, visit = _android_app(self, appkey), visit_of(request)
        services = await services_of(self.site, app)
        response.set_header(POLICY_HEADER, content_security_policy(self.site.gateway_url, self.site.v2_url))
        self.show(
            request,
            response,
            "apps/phone.html",
            app=app,
            gateway_url=self.site.gateway_url,
            requests_url=f"{self.site.v2_url}/device/v1",
            worker=WORKER_PATH.format(appkey=appkey),
            has_key=bool(public_key_of(app)),
            simulators=[name for name in services.simulators if name == _CHANNEL] if services else [],
            may_change=visit.may_app(Action.CHANGE_APP, appkey),
            texts=_texts(visit),
        )


class PhoneWorker(Page):
    """GET answers with the service worker of an app's phone: the SDK's, with what it keeps apart from other apps'."""

    async def on_get(self, request: Request, response: Response, appkey: str) -> None:
        app = _android_app(self, appkey)
        sdk = self.site.files.url("carillon-webpush.js")
        response.text = f'importScripts("{sdk}");\nCarillonWebPush.database = "carillon-{app.appkey}";\n'
        response.content_type = falcon.MEDIA_JS
        response.set_header(POLICY_HEADER, content_security_policy(self.site.v2_url))
        response.set_header("Service-Worker-Allowed", f"/apps/{app.appkey}/phone")


def _android_app(page: Page, appkey: str) -> App:
    """Return the app of a path. HTTP 404: there is none, or its devices are no phones with a connection."""
    app = page.app(appkey)
    if app.platform != PLATFORM_ANDROID:
        raise falcon.HTTPNotFound
    return app


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
        "web_push_on": visit.gettext("Subscribed. This phone gets pushes while no page is open, too."),
        "web_push_off": visit.gettext("Not subscribed."),
        "web_push_elsewhere": visit.gettext("The phone of another tab is subscribed."),
        "web_push_insecure": visit.gettext(
            "Not possible at {origin}: browsers accept pushes for pages with HTTPS, and for localhost."
        ),
        "web_push_unsupported": visit.gettext("This browser has no Web Push."),
        "web_push_origin": visit.gettext(
            "Not possible: the app's settings do not name {origin} as an origin of its site."
        ),
        "web_push_denied": visit.gettext(
            "The browser blocks notifications of this site. Allow them in its settings, then load this page again."
        ),
        "web_push_failed": visit.gettext("Not possible: {reason}"),
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
