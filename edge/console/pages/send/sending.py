"""Sends a push that was reviewed, or stores it as a draft where it needs approval: once, however often one clicks."""

from falcon.asgi import Request, Response

from edge.console.access_control.visit import Visit
from edge.console.actions.pushes import push_of
from edge.console.actions.sending import estimated_devices, read_push, send_push
from edge.console.pages.page import Page, go_to, visit_of
from edge.console.pages.send.sending_page import SendingPage, is_again, replaced_draft, words_of_old_key
from edge.console.send.composed_pushes import ComposedPush, SentPush
from protos.registry.v1.apps_pb2 import App
from services.runtime.errors import CarillonError, NotFoundError


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
        outcome = await send_push(self.site, visit, app, composed, key, devices, replaced=replaced)
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
