"""Why a user got a push or not: one sentence for each of the user's devices, with the records behind it."""

from urllib.parse import urlencode

import falcon
from falcon.asgi import Request, Response

from edge.console.actions.devices import find_devices, note_data_read
from edge.console.actions.pushes import Before
from edge.console.actions.why import pushes_of_user, why
from edge.console.pages.page import Page, go_to, visit_of
from edge.console.view.explanation import Words
from edge.console.view.push_view import content
from services.domain.accounts.permissions import Action
from services.runtime.errors import NotFoundError

MAX_PUSHES = 20


class WhyPageBase(Page):
    """The base of the form and of the page that answers it."""

    def show_form(
        self, request: Request, response: Response, appkey: str, name: str, msgid: str, problem: str = ""
    ) -> None:
        """Answer with the form, filled in. `problem`: why there is no answer."""
        visit = visit_of(request)
        apps = [app for app in self.visible_apps(visit) if visit.may_app(Action.VIEW_DEVICES, app.appkey)]
        self.show(
            request,
            response,
            "devices/why_form.html",
            404 if problem else 200,
            apps=apps,
            asked_appkey=appkey,
            name=name,
            msgid=msgid,
            problem=problem,
        )


class WhyFormPage(WhyPageBase):
    """GET shows the form, and goes on to the answer."""

    async def on_get(self, request: Request, response: Response) -> None:
        appkey, name, msgid = ((request.get_param(field) or "").strip() for field in ("appkey", "name", "push"))
        if self.site.apps.get(appkey) and name:
            raise go_to(f"/apps/{appkey}/why?{urlencode({'name': name, 'push': msgid})}")
        self.show_form(request, response, appkey, name, msgid)


class WhyPage(WhyPageBase):
    """GET answers for the devices with an alias or a token.

    Without a message id it lists pushes, those before `before` if it is given, with their states on the devices.
    """

    async def on_get(self, request: Request, response: Response, appkey: str) -> None:
        app, visit = self.app(appkey), visit_of(request)
        name, msgid = (request.get_param("name") or "").strip(), (request.get_param("push") or "").strip()
        await note_data_read(self.site, visit, appkey, name, msgid)
        devices = await find_devices(self.site, appkey, name)
        if not devices:
            problem = visit.gettext(
                "No device of %(app)s has this token or alias now. "
                "The device sets its alias itself, when its user logs in."
            ) % {"app": app.name}
            self.show_form(request, response, appkey, name, msgid, problem)
            return
        if not msgid:
            before = Before.of(request.get_param("before") or "0-0")
            found = await pushes_of_user(self.site, app, devices, MAX_PUSHES, before)
            self.show(request, response, "devices/why_pushes.html", app=app, name=name, **found._asdict())
            return
        language = visit.language
        words = Words(language, lambda ms: language.moment(ms, visit.zone))
        try:
            answers = await why(self.site, appkey, msgid, devices, words)
        except (falcon.HTTPNotFound, NotFoundError):
            problem = visit.gettext("No push of %(app)s has this message id.") % {"app": app.name}
            self.show_form(request, response, appkey, name, msgid, problem)
            return
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
