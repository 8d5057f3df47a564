"""Saved audiences of an app: the page that lists them, and the buttons of the form that save one or fill it in."""

from collections.abc import Mapping
from typing import Any

import falcon
import msgspec
from falcon.asgi import Request, Response

from console.send.forms import Body, audience_body, audience_form
from console.send.page import SendingPage, problem_to_mend
from console.shell.access import Requester
from console.shell.backend import Backend
from console.shell.page import Page, go_to, visit_of
from edge.v2.push.targets import ALL_TARGETS
from protos.push.v1.push_pb2 import Audience
from protos.registry.v1.apps_pb2 import PLATFORM_ANDROID, App, SavedAudience
from protos.registry.v1.registry_pb2 import RemoveAudienceRequest, SaveAudienceRequest
from services.domain.text import checked_text
from services.errors import CarillonError, Code, InputError, NotFoundError

SCOPES = (6, 7, 8)
"""The values of userScope that saved audiences have."""

_MESSAGE = {"basic": {"content": "-", "is_notif": 0}}


async def save_audience(
    backend: Backend, requester: Requester, app: App, name: str, send_to: Mapping[str, Any], *, must_be_new: bool
) -> SavedAudience:
    """Save the audience of a v2 request under a name, in place of the one that has the name.

    InputError: it breaks a rule of v2, or is no filter. Other errors as for the registry's call.
    """
    definition = {name: value for name, value in send_to.items() if name in ("userScope", *ALL_TARGETS)}
    audience_of(backend, app, definition)
    request = SaveAudienceRequest(
        appkey=app.appkey,
        name=name,
        send_to_json=msgspec.json.encode(definition).decode(),
        must_be_new=must_be_new,
        origin=requester.origin,
    )
    saved = (await backend.roles.registry.SaveAudience(request)).audience
    await backend.apps.refresh()
    return saved


async def remove_audience(backend: Backend, requester: Requester, app: App, name: str) -> None:
    """Remove a saved audience. NotFoundError: the app has none with this name."""
    request = RemoveAudienceRequest(appkey=app.appkey, name=name, origin=requester.origin)
    await backend.roles.registry.RemoveAudience(request)
    await backend.apps.refresh()


def audience_of(backend: Backend, app: App, send_to: Mapping[str, Any]) -> Audience:
    """Return the audience of a definition. InputError: it breaks a rule of v2, or is no filter."""
    platform = "android" if app.platform == PLATFORM_ANDROID else "ios"
    body = {"sendTo": {**send_to, "appkey": {platform: app.appkey}}, "msgStyle": {**_MESSAGE}}
    order = backend.composed_pushes.read(body).order
    if order.scope not in SCOPES:
        raise InputError(Code.NO_FILTER)
    return order.pushes[0].audience


def definition_of(audience: SavedAudience) -> Body:
    """Return `sendTo` of a request with the saved audience, without the app."""
    definition: Body = msgspec.json.decode(audience.send_to_json)
    return definition


class SavedAudiencesPage(Page):
    """GET lists the saved audiences of an app; POST removes one."""

    async def on_get(self, request: Request, response: Response, appkey: str) -> None:
        visit, app = visit_of(request), self.app(appkey)
        rows = []
        for audience in self.site.apps.audiences(appkey):
            try:
                words = visit.language.audience.of_push(audience_of(self.site, app, definition_of(audience)))
            except InputError as error:  # a later release may have other rules
                words = visit.language.problem(error, {})
            rows.append((audience, words, self.site.accounts.name_of(audience.owner)))
        self.show(request, response, "send/audiences.html", app=app, rows=rows)

    async def on_post(self, request: Request, response: Response, appkey: str) -> None:
        visit, app = visit_of(request), self.app(appkey)
        try:
            await remove_audience(self.site, visit, app, visit.form.get("remove", ""))
        except NotFoundError:
            pass  # somebody else has removed it
        else:
            visit.notify(visit.gettext("The audience is removed."))
        raise go_to(f"/apps/{appkey}/audiences")


class FormAudiencePage(SendingPage):
    """POST of the form of a push saves its audience (`audience_save`), or fills in a saved one (`audience_take`), and
    shows the form again.
    """

    async def on_post(self, request: Request, response: Response, appkey: str) -> None:
        visit, app = visit_of(request), self.app(appkey)
        form = dict(visit.form)
        problem = ""
        try:
            if "audience_take" in form:
                form |= self._saved(app, form.get("saved_audience", ""))
            elif "audience_save" in form:
                name = checked_text("audience_name", form.get("audience_name", "").strip())
                send_to = audience_body(form, self.chosen(visit, app))["sendTo"]
                await save_audience(self.site, visit, app, name, send_to, must_be_new=not form.get("audience_replace"))
                visit.notify(visit.gettext("The audience is saved."))
            else:
                raise falcon.HTTPBadRequest
        except CarillonError as error:
            problem = problem_to_mend(error, visit)
        self.show_form(request, response, app, form, problem)

    def _saved(self, app: App, name: str) -> dict[str, str]:
        audience = self.site.apps.audience(app.appkey, name)
        if audience is None:
            raise NotFoundError(Code.NO_SUCH_AUDIENCE, appkey=app.appkey, name=name)
        return audience_form(definition_of(audience)) | {"audience_name": name}
