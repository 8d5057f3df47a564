"""The page of an app's webhooks."""

from collections.abc import Callable, Mapping

from falcon.asgi import Request, Response

from console.shell.page import AWAY, Page, go_to, problem_of, visit_of
from console.shell.visit import Visit
from console.webhooks import actions
from console.webhooks.answers import FORMS
from protos.registry.v1.registry_pb2 import ChangeWebhookRequest, WebhookKinds
from protos.webhooks.v1.webhooks_pb2 import Attempt
from services.domain.webhooks import KIND_NAMES, KINDS, shown_url
from services.errors import CarillonError

KEEP_OLD_S = 86_400
"""How long the former secret of a webhook signs too, seconds."""

_KIND = "kind:"
"""What stands before a kind of event in the name of its field."""


class WebhooksPage(Page):
    """GET shows an app's webhooks and the latest requests of one; POST makes or changes one, or sends a test event."""

    async def on_get(self, request: Request, response: Response, appkey: str) -> None:
        await self.site.apps.refresh()
        await self._show(request, response, appkey)

    async def on_post(self, request: Request, response: Response, appkey: str) -> None:
        visit, app = visit_of(request), self.app(appkey)
        form = visit.form
        webhook_id = form.get("webhook", "")
        try:
            if form.get("change") == "test":
                visit.notify(await self._tested(visit, appkey, webhook_id))
                raise go_to(f"/apps/{app.appkey}/webhooks?webhook={webhook_id}")
            asked = _change_of(form, app.appkey, webhook_id)
            changed = await actions.change_webhook(self.site, visit, asked)
        except CarillonError as error:
            await self._show(request, response, appkey, problem_of(error, visit))
            return
        words = visit.gettext("The webhook is changed.")
        if asked.remove:
            words = visit.gettext("The webhook is removed.")
        elif not webhook_id:
            words = visit.gettext("The webhook is made.")
        visit.notify(words, shown_once=changed.secret)
        raise go_to(f"/apps/{app.appkey}/webhooks")

    async def _tested(self, visit: Visit, appkey: str, webhook_id: str) -> str:
        """Send a test event; return the words of what became of it."""
        sent = await actions.send_test(self.site, appkey, webhook_id)
        if sent.taken:
            return visit.gettext("The receiver took the test event.")
        return visit.gettext("The receiver did not take the test event: %(answer)s") % {"answer": sent.attempt.answer}

    async def _show(self, request: Request, response: Response, appkey: str, problem: object = "") -> None:
        visit, app = visit_of(request), self.app(appkey)
        chosen = request.get_param("webhook") or ""
        known = {webhook.webhook_id for webhook in app.webhooks}
        self.show(
            request,
            response,
            "webhooks/webhooks.html",
            400 if problem else 200,
            problem=problem,
            app=app,
            hosts={webhook.webhook_id: shown_url(webhook.url) for webhook in app.webhooks},
            states=await actions.states(self.site, app.appkey),
            chosen=chosen if chosen in known else "",
            attempts=await self._attempts(app.appkey, chosen) if chosen in known else None,
            form_names=_form_names(visit.gettext),
            forms={number: name for name, number in FORMS.items()},
            kinds=list(KINDS),
            kind_names=KIND_NAMES,
            form=visit.form,
        )

    async def _attempts(self, appkey: str, webhook_id: str) -> list[Attempt] | None:
        """Return the latest requests of a webhook; None if the role webhooks does not answer, or does not know it."""
        try:
            return list(await actions.attempts(self.site, appkey, webhook_id))
        except CarillonError as error:
            if not isinstance(error, AWAY) and error.result != 400:
                raise
            return None


def _change_of(form: Mapping[str, str], appkey: str, webhook_id: str) -> ChangeWebhookRequest:
    """Return the change that a form asks for; a new webhook where it names none."""
    if not webhook_id:
        request = ChangeWebhookRequest(appkey=appkey, url=form.get("url", "").strip())
        kinds = [KINDS[name] for name in KINDS if form.get(_KIND + name) == "on"]
        request.kinds.CopyFrom(WebhookKinds(kinds=kinds))
        request.form = FORMS.get(form.get("form", ""), FORMS["standard"])
        return request
    request = ChangeWebhookRequest(appkey=appkey, webhook_id=webhook_id)
    match form.get("change"):
        case "remove":
            request.remove = True
        case "resume":
            request.resume = True
        case "rotate":
            request.rotate_keep_old_s = KEEP_OLD_S
        case "off" | "on":
            request.disabled = form.get("change") == "off"
        case _:
            pass
    return request


def _form_names(gettext: Callable[[str], str]) -> Mapping[str, str]:
    """Return the words for each form of requests."""
    _ = gettext
    return {
        "standard": _("signed JSON"),
        "slack": "Slack",
        "dingtalk": _("DingTalk"),
        "feishu": _("Feishu"),
        "wecom": _("WeCom"),
    }
