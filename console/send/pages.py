"""Pages that compose, review and send a push."""

from collections.abc import Mapping
from datetime import datetime

import falcon
from falcon.asgi import Request, Response

from console.pushes.actions import push_of
from console.send.actions import draft_of, estimated_devices, read_push, send_push
from console.send.audience import Size
from console.send.composed_pushes import ComposedPush, SentPush
from console.send.draft_pages import body_of_draft
from console.send.forms import audience_body, audience_form, body_of
from console.send.page import (
    SendingPage,
    is_again,
    problem_to_mend,
    replaced_draft,
    words_of_old_key,
    words_of_unknown_size,
)
from console.send.preview import previews_of_form
from console.send.saved_audiences import definition_of
from console.shell.error_words import FormProblem
from console.shell.page import AWAY, Page, go_to, unknown_app, visit_of
from console.shell.visit import Visit
from console.tasks.actions import may_cancel
from protos.accounts.v1.drafts_pb2 import DraftStatus
from protos.registry.v1.apps_pb2 import PLATFORM_ANDROID, App
from services.domain.permissions import Action
from services.errors import CarillonError, InputError, NotFoundError

ENDED_UNSENT = (
    DraftStatus.DRAFT_STATUS_REJECTED,
    DraftStatus.DRAFT_STATUS_WITHDRAWN,
    DraftStatus.DRAFT_STATUS_EXPIRED,
)
"""The states of drafts that nothing comes of any more, whose content may be written anew."""

_MENDED = ("1", "-", "https://example.org", ">= 1", "a: b", "北京市")
"""Texts one of which each field of the form takes, so that what is wrong with further fields can be found."""

_MAX_PROBLEMS = 9

MAX_CONDITIONS = 1000
"""Characters of the words for an audience that the form shows."""

NEW = {"is_notif": "1", "click_action": "1", "removable": "1", "audience": "filter", "when": "now", "period_unit": "h"}
"""What a new form has chosen."""


class ChooseAppPage(Page):
    """GET asks for the app; it goes on to the form where there is one."""

    async def on_get(self, request: Request, response: Response) -> None:
        visit = visit_of(request)
        visible = self.visible_apps(visit)
        apps = [app for app in visible if visit.may_app(Action.SEND, app.appkey)]
        appkey = request.get_param("appkey") or ""
        chosen = [app for app in apps if appkey in ("", app.appkey)]
        problem = unknown_app(visit, appkey, apps) if apps else ""
        if len(chosen) == 1:
            raise go_to(f"/apps/{chosen[0].appkey}/send")
        may_register = visit.may(Action.MANAGE_INSTALLATION)
        self.show(
            request,
            response,
            "send/choose.html",
            404 if problem else 200,
            problem=problem,
            appkey=appkey,
            apps=apps,
            has_visible_apps=bool(visible),
            may_register=may_register,
        )


class ComposePage(SendingPage):
    """GET shows the form, with `copy` filled in from an earlier push; POST checks it and shows the review.

    With `saved` GET shows it with this saved audience.
    With `draft` GET shows the form of a draft: one that waits is changed then, one that was rejected, withdrawn or has
    expired is written anew. With `task` it is the form of a timed push that waits, which is replaced then. A POST with
    `body` shows the form of this request again.
    """

    async def on_get(self, request: Request, response: Response, appkey: str) -> None:
        app = self.app(appkey)
        form = NEW
        if draft_id := request.get_param("draft"):
            form = await self._form_of_draft(request, appkey, draft_id)
        elif task_key := request.get_param("task"):
            form = await self._form_of_task(visit_of(request), app, task_key)
        elif (saved := self.site.apps.audience(appkey, request.get_param("saved") or "")) is not None:
            form = NEW | audience_form(definition_of(saved)) | {"audience_name": saved.name, "audience_replace": "1"}
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
            composed = self._read(visit, app, visit.form)
        except CarillonError as error:
            self.show_form(request, response, app, visit.form, self._problems(visit, app, error))
            return
        try:
            await self.show_review(request, response, app, composed)
        except CarillonError as error:
            self.show_form(request, response, app, visit.form, problem_to_mend(error, visit))

    def _read(self, visit: Visit, app: App, form: Mapping[str, str]) -> ComposedPush:
        return self.site.composed_pushes.read(body_of(form, self.chosen(visit, app), self.zones(visit)))

    def _problems(self, visit: Visit, app: App, error: CarillonError) -> FormProblem:
        """Return the problem of the form with its others: each is what is wrong once those before it are mended."""
        first = problem = problem_to_mend(error, visit)
        form, others = dict(visit.form), list[FormProblem]()
        soon = datetime.fromtimestamp(self.site.clock.now_ms() / 1000 + 86_400, visit.zone).strftime("%Y-%m-%dT%H:%M")
        while problem.field and len(others) < _MAX_PROBLEMS:
            following = None
            for mended in (*_MENDED, soon):
                form[problem.field] = mended
                try:
                    self._read(visit, app, form)
                except CarillonError as next_error:
                    following = problem_to_mend(next_error, visit)
                    if following.field != problem.field:
                        break
                else:
                    following = None
                    break
            if following is None or following.field in ("", problem.field, *(each.field for each in (first, *others))):
                break
            others.append(problem := following)
        first.others = others
        return first

    async def _form_of_draft(self, request: Request, appkey: str, draft_id: str) -> dict[str, str]:
        """Return the form of a draft with a push of this app, which is a new push where the draft has ended unsent.

        It goes on to the draft's page if that was approved.
        """
        team_id = self.site.accounts.team_of(appkey)
        stored = await draft_of(self.site, team_id, draft_id)
        if appkey not in [push.appkey for push in stored.draft.task.pushes]:
            raise falcon.HTTPNotFound
        if stored.status not in (DraftStatus.DRAFT_STATUS_WAITING, *ENDED_UNSENT):
            raise go_to(f"/drafts/{team_id}/{draft_id}")
        form = self.form_of(visit_of(request), self.app(appkey), body_of_draft(stored.draft))
        if stored.status in ENDED_UNSENT:
            return form
        return form | {"draft": draft_id, "digest": stored.draft.digest.hex()}

    async def _form_of_task(self, visit: Visit, app: App, task_key: str) -> dict[str, str]:
        """Return the form of a timed push, at its time; goes on to the push's page if it cannot be cancelled any more.

        HTTP 404: the app has no such task.
        """
        try:
            task = await self.site.tasks.get(task_key, [app.appkey])
        except NotFoundError:
            raise falcon.HTTPNotFound from None
        if not may_cancel(visit, task):
            msgid = next(push.msgid for push in task.pushes if push.appkey == app.appkey)
            raise go_to(f"/apps/{app.appkey}/pushes/{msgid}")
        text = next((push.request_json for push in task.pushes if push.request_json), "")
        due = datetime.fromtimestamp(task.due_ms / 1000, visit.zone).strftime("%Y-%m-%dT%H:%M")
        return (self.form_of(visit, app, text) or dict(NEW)) | {"when": "at", "send_at": due, "task": task_key}


class TypedPage(Page):
    """POST shows what a form has so far, as phones show it, with the length of each text. It checks nothing."""

    async def on_post(self, request: Request, response: Response, appkey: str) -> None:
        visit, app = visit_of(request), self.app(appkey)
        shown = previews_of_form(visit.form, is_android=app.platform == PLATFORM_ANDROID)
        names = {
            "title": visit.gettext("Title"),
            "content": visit.gettext("Text"),
            "content_ios": visit.gettext("Another text on iOS"),
        }
        texts = [(name, visit.form.get(field, "")) for field, name in names.items()]
        self.show(request, response, "send/typed.html", app=app, previews=shown, texts=texts)


class SizePage(SendingPage):
    """POST shows what the audience of a form so far means, how many devices it has now, and their share of the app."""

    async def on_post(self, request: Request, response: Response, appkey: str) -> None:
        visit, app = visit_of(request), self.app(appkey)
        words, sizes, problem = "", list[Size](), ""
        try:
            composed = self.site.composed_pushes.read(audience_body(visit.form, self.chosen(visit, app)))
            words = visit.language.audience.of_push(composed.order.pushes[0].audience)
            sizes = await self.site.audiences.sizes(composed)
        except AWAY:
            problem = words_of_unknown_size(visit)
        except InputError as error:
            problem = problem_to_mend(error, visit)
        self.show(
            request,
            response,
            "send/size.html",
            words=words if len(words) <= MAX_CONDITIONS else f"{words[:MAX_CONDITIONS]} …",
            sizes=[(self.app(size.appkey), size) for size in sizes if size.channels is not None],
            problem=problem,
        )


# Sends a push that was reviewed, or stores it as a draft where it needs approval: once, however often one clicks.


class SendPage(SendingPage):
    """POST sends what the review showed, and goes on to the push, its task or its draft, which it may change."""

    async def on_post(self, request: Request, response: Response, appkey: str) -> None:
        visit = visit_of(request)
        app = self.app(appkey)
        may_be_sent = is_again(visit)
        try:
            composed = read_push(self.site, visit, app, visit.form.get("body", ""))
            problem = self._problem(visit, composed)
            if problem:
                await self.show_review(request, response, app, composed, problem)
                return
            devices = await estimated_devices(self.site, composed)
            may_be_sent = True
            path = await self._send(visit, app, composed, devices)
        except CarillonError as error:
            self.show_failure(request, response, app, error, may_be_sent=may_be_sent)
            return
        raise go_to(path)

    def _problem(self, visit: Visit, composed: ComposedPush) -> str:
        """Return why the review has to be looked at again, or ""."""
        if not self.site.composed_pushes.is_valid(visit.form.get("key", "")):
            return words_of_old_key(visit)
        typed = "".join(str(int(char)) for char in visit.form.get("typed", "") if char.isdecimal())
        number = typed.lstrip("0") or typed[:1]
        if composed.is_broadcast and (not number or number != visit.form.get("devices")):
            return visit.gettext("Type the number of devices that the push goes to, as it is shown here.")
        return ""

    async def _send(self, visit: Visit, app: App, composed: ComposedPush, devices: int) -> str:
        """Send the push and return the path to go on to."""
        key, replaced = visit.form["key"], replaced_draft(visit)
        outcome = await send_push(
            *(self.site, visit, app, composed, key, devices),
            replaced=replaced,
            replaced_task=visit.form.get("task", ""),
        )
        if outcome.sent is None:
            visit.notify(visit.gettext("The push waits for the approval of a second person."))
            return f"/drafts/{outcome.draft.team_id}/{outcome.draft.draft_id}"
        visit.notify(self._notice(visit, outcome.sent))
        if outcome.sent.task_key:
            return f"/tasks?appkey={app.appkey}"
        return f"/apps/{app.appkey}/sent/{outcome.sent.msgids[app.appkey]}"

    def _notice(self, visit: Visit, sent: SentPush) -> str:
        if sent.task_key:
            return visit.gettext("The push is scheduled, under the task key %(key)s.") % {"key": sent.task_key}
        names = (f"{self.app(appkey).name} {msgid}" for appkey, msgid in sent.msgids.items())
        return visit.gettext("The push is accepted: %(ids)s.") % {"ids": ", ".join(names)}


class SentPage(Page):
    """GET goes on to the page of a push that was just sent, as soon as analytics has read of it."""

    async def on_get(self, request: Request, response: Response, appkey: str, msgid: str) -> None:
        app = self.app(appkey)
        path = f"/apps/{appkey}/pushes/{msgid}"
        try:
            await push_of(self.site, appkey, msgid)
        except NotFoundError:
            template = "send/sent_wait.html" if visit_of(request).is_fragment else "send/sent.html"
            self.show(request, response, template, app=app, msgid=int(msgid))
            return
        if visit_of(request).is_fragment:
            response.set_header("HX-Redirect", path)
            return
        raise go_to(path)
