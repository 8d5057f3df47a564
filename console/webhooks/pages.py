"""The pages of the webhooks of an app and of a team."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from falcon.asgi import Request, Response

from console.shell.backend import team_of
from console.shell.page import AWAY, Page, go_to, problem_of, visit_of
from console.shell.visit import Visit
from console.webhooks import actions
from console.webhooks.actions import WebhookOwner
from console.webhooks.answers import FORMS
from protos.registry.v1.registry_pb2 import ChangeWebhookRequest, WebhookKinds, WebhookLabels
from protos.webhooks.v1.webhooks_pb2 import Attempt
from services.domain.webhooks import KIND_NAMES, KINDS, shown_url
from services.errors import CarillonError

KEEP_OLD_S = 86_400
"""How long the former secret of a webhook signs too, seconds."""

_KIND = "kind:"
"""What stands before a kind of event in the name of its field."""


class ShownOwner(NamedTuple):
    """The app or the team whose webhooks a page shows. `path`: that of its own page; `name`: as people call it."""

    subscriber: WebhookOwner
    name: str
    path: str

    @property
    def page(self) -> str:
        """The path of the page of its webhooks."""
        return f"{self.path}/webhooks"


class WebhooksPageBase(Page):
    """The base of the pages of an app's webhooks and of a team's, which need different rights."""

    async def show_webhooks(
        self, request: Request, response: Response, shown: ShownOwner, problem: object = ""
    ) -> None:
        """Answer with the webhooks and the latest requests of one. `problem`: what is wrong in the form."""
        visit = visit_of(request)
        webhooks = actions.webhooks_of(self.site, shown.subscriber)
        chosen = request.get_param("webhook") or ""
        is_known = chosen in {webhook.webhook_id for webhook in webhooks}
        self.show(
            request,
            response,
            "webhooks/webhooks.html",
            400 if problem else 200,
            problem=problem,
            shown=shown,
            webhooks=webhooks,
            hosts={webhook.webhook_id: shown_url(webhook.url) for webhook in webhooks},
            states=await actions.states(self.site, shown.subscriber),
            chosen=chosen if is_known else "",
            attempts=await self._attempts(shown.subscriber, chosen) if is_known else None,
            form_names=_form_names(visit.gettext),
            forms={number: name for name, number in FORMS.items()},
            kinds=list(KINDS),
            kind_names=KIND_NAMES,
            form=visit.form,
        )

    async def change(self, request: Request, response: Response, shown: ShownOwner) -> None:
        """Make or change a webhook, or send a test event, and go back to the page."""
        visit = visit_of(request)
        form = visit.form
        webhook_id = form.get("webhook", "")
        try:
            if form.get("change") == "test":
                visit.notify(await self._tested(visit, shown.subscriber, webhook_id))
                raise go_to(f"{shown.page}?webhook={webhook_id}")
            asked = _change_of(form, shown.subscriber, webhook_id)
            changed = await actions.change_webhook(self.site, visit, asked)
        except CarillonError as error:
            await self.show_webhooks(request, response, shown, problem_of(error, visit))
            return
        words = visit.gettext("The webhook is changed.")
        if asked.remove:
            words = visit.gettext("The webhook is removed.")
        elif not webhook_id:
            words = visit.gettext("The webhook is made.")
        visit.notify(words, shown_once=changed.secret)
        raise go_to(shown.page)

    async def _tested(self, visit: Visit, subscriber: WebhookOwner, webhook_id: str) -> str:
        """Send a test event; return the words of what became of it."""
        sent = await actions.send_test(self.site, subscriber, webhook_id)
        if sent.taken:
            return visit.gettext("The receiver took the test event.")
        return visit.gettext("The receiver did not take the test event: %(answer)s") % {"answer": sent.attempt.answer}

    async def _attempts(self, subscriber: WebhookOwner, webhook_id: str) -> list[Attempt] | None:
        """Return the latest requests of a webhook; None if the role webhooks does not answer, or does not know it."""
        try:
            return list(await actions.attempts(self.site, subscriber, webhook_id))
        except CarillonError as error:
            if not isinstance(error, AWAY) and error.result != 400:
                raise
            return None


class WebhooksPage(WebhooksPageBase):
    """GET shows an app's webhooks and the latest requests of one; POST makes or changes one, or sends a test event."""

    async def on_get(self, request: Request, response: Response, appkey: str) -> None:
        await self.site.apps.refresh()
        await self.show_webhooks(request, response, self._shown(appkey))

    async def on_post(self, request: Request, response: Response, appkey: str) -> None:
        await self.change(request, response, self._shown(appkey))

    def _shown(self, appkey: str) -> ShownOwner:
        app = self.app(appkey)
        return ShownOwner(WebhookOwner(app.appkey), app.name, f"/apps/{app.appkey}")


class TeamWebhooksPage(WebhooksPageBase):
    """GET and POST as for an app, of the webhooks of a team, which get the events of all its apps."""

    async def on_get(self, request: Request, response: Response, team_id: str) -> None:
        await self.site.apps.refresh()
        await self.show_webhooks(request, response, self._shown(team_id))

    async def on_post(self, request: Request, response: Response, team_id: str) -> None:
        await self.change(request, response, self._shown(team_id))

    def _shown(self, team_id: str) -> ShownOwner:
        team = team_of(self.site, team_id)
        return ShownOwner(WebhookOwner(team_id=team.team_id), team.name, f"/teams/{team.team_id}")


def _change_of(form: Mapping[str, str], subscriber: WebhookOwner, webhook_id: str) -> ChangeWebhookRequest:
    """Return the change that a form asks for; a new webhook where it names none."""
    if not webhook_id:
        request = ChangeWebhookRequest(**subscriber._asdict(), url=form.get("url", "").strip())
        kinds = [KINDS[name] for name in KINDS if form.get(_KIND + name) == "on"]
        request.kinds.CopyFrom(WebhookKinds(kinds=kinds))
        labels = (label.strip() for label in form.get("labels", "").replace("，", ",").split(","))
        request.labels.CopyFrom(WebhookLabels(labels=[label for label in labels if label]))
        request.form = FORMS.get(form.get("form", ""), FORMS["standard"])
        return request
    request = ChangeWebhookRequest(**subscriber._asdict(), webhook_id=webhook_id)
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
