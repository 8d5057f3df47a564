"""Composes a push: the choice of an app, the form, and the review of what would be sent."""

import falcon
from falcon.asgi import Request, Response

from edge.console.actions.drafts import draft_of
from edge.console.actions.pushes import push_of
from edge.console.pages.page import Page, go_to, visit_of
from edge.console.pages.send.drafts import body_of_draft
from edge.console.pages.send.sending_page import SendingPage, problem_to_mend
from edge.console.send.request_from_form import body_of
from protos.accounts.v1.drafts_pb2 import DraftStatus
from services.domain.accounts.permissions import Action
from services.runtime.errors import CarillonError, NotFoundError

NEW = {"is_notif": "1", "click_action": "1", "removable": "1", "audience": "filter", "when": "now", "period_unit": "h"}
"""What a new form has chosen."""


class ChooseAppPage(Page):
    """GET asks for the app; it goes on to the form where there is one."""

    async def on_get(self, request: Request, response: Response) -> None:
        visit = visit_of(request)
        visible = self.visible_apps(visit)
        apps = [app for app in visible if visit.may_app(Action.SEND, app.appkey)]
        chosen = [app for app in apps if app.appkey == request.get_param("appkey")] or apps
        if len(chosen) == 1:
            raise go_to(f"/apps/{chosen[0].appkey}/send")
        may_register = visit.may(Action.MANAGE_INSTALLATION)
        self.show(
            request,
            response,
            "send/choose.html",
            apps=apps,
            has_visible_apps=bool(visible),
            may_register=may_register,
        )


class ComposePage(SendingPage):
    """GET shows the form, with `copy` filled in from an earlier push; POST checks it and shows the review.

    With `draft` GET shows the form of a draft that waits, which is changed then. A POST with `body` shows the form of
    this request again.
    """

    async def on_get(self, request: Request, response: Response, appkey: str) -> None:
        app = self.app(appkey)
        form = NEW
        if draft_id := request.get_param("draft"):
            form = await self._form_of_draft(request, appkey, draft_id)
        elif msgid := request.get_param("copy"):
            try:
                copied = (await push_of(self.site, appkey, msgid)).request_json
            except NotFoundError:
                copied = ""
            form = self.form_of(visit_of(request), app, copied) or NEW
        self.show_form(request, response, app, form)

    async def on_post(self, request: Request, response: Response, appkey: str) -> None:
        visit = visit_of(request)
        app = self.app(appkey)
        if "body" in visit.form:
            self.show_form(request, response, app, self.form_again(visit, app, visit.form["body"]))
            return
        try:
            apps = self.chosen(visit, app)
            composed = self.site.composed_pushes.read(body_of(visit.form, apps, self.zones(visit)))
            await self.show_review(request, response, app, composed)
        except CarillonError as error:
            self.show_form(request, response, app, visit.form, problem_to_mend(error, visit))

    async def _form_of_draft(self, request: Request, appkey: str, draft_id: str) -> dict[str, str]:
        """Return the form of a draft with a push of this app; goes on to its page if it does not wait any more."""
        team_id = self.site.accounts.team_of(appkey)
        stored = await draft_of(self.site, team_id, draft_id)
        if appkey not in [push.appkey for push in stored.draft.task.pushes]:
            raise falcon.HTTPNotFound
        if stored.status != DraftStatus.DRAFT_STATUS_WAITING:
            raise go_to(f"/drafts/{team_id}/{draft_id}")
        form = self.form_of(visit_of(request), self.app(appkey), body_of_draft(stored.draft))
        return form | {"draft": draft_id, "digest": stored.draft.digest.hex()}
