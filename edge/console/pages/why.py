"""Why a user got a push or not: one sentence for each of the user's devices, with the records behind it."""

from urllib.parse import urlencode

from falcon.asgi import Request, Response

from edge.console.actions.devices import find_devices, note_data_read
from edge.console.actions.pushes import latest_pushes
from edge.console.actions.why import why
from edge.console.pages.page import Page, go_to, visit_of
from edge.console.view.explanation import Words
from edge.console.view.push_view import content
from services.domain.accounts.permissions import Action

MAX_PUSHES = 20


class WhyFormPage(Page):
    """GET shows the form, and goes on to the answer."""

    async def on_get(self, request: Request, response: Response) -> None:
        visit = visit_of(request)
        asked = {name: (request.get_param(name) or "").strip() for name in ("appkey", "name", "push")}
        if self.site.apps.get(asked["appkey"]) and asked["name"]:
            raise go_to(f"/apps/{asked['appkey']}/why?{urlencode({'name': asked['name'], 'push': asked['push']})}")
        apps = [app for app in self.visible_apps(visit) if visit.may_app(Action.VIEW_DEVICES, app.appkey)]
        self.show(request, response, "devices/why_form.html", apps=apps)


class WhyPage(Page):
    """GET answers for the devices with an alias or a token; without a message id it lists the app's latest pushes."""

    async def on_get(self, request: Request, response: Response, appkey: str) -> None:
        app = self.app(appkey)
        name, msgid = (request.get_param("name") or "").strip(), (request.get_param("push") or "").strip()
        await note_data_read(self.site, visit_of(request), appkey, name, msgid)
        devices = await find_devices(self.site, appkey, name)
        if not devices:
            self.show(request, response, "devices/several.html", 404, app=app, name=name, devices=[])
            return
        if not msgid:
            rows = (await latest_pushes(self.site, [app], MAX_PUSHES)).rows
            self.show(request, response, "devices/why_pushes.html", app=app, name=name, rows=rows)
            return
        visit = visit_of(request)
        language = visit.language
        words = Words(language, lambda ms: language.moment(ms, visit.zone))
        answers = await why(self.site, appkey, msgid, devices, words)
        self.show(
            request,
            response,
            "devices/why.html",
            app=app,
            name=name,
            msgid=int(msgid),
            content=content(answers.request_json),
            answers=answers.of_devices,
            records_behind=answers.records_behind,
        )
