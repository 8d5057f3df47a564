"""The base of the pages that compose, check and send pushes."""

from collections.abc import Sequence
from typing import Any

from falcon.asgi import Request, Response

from console.apps.actions import simulators_of
from console.devices.actions import note_data_read
from console.send.actions import approval_need, partners
from console.send.audience import Audience
from console.send.composed_pushes import ComposedPush, DraftVersion
from console.send.forms import ARTICLES, ChosenApps, Zones, form_of_text
from console.send.preview import (
    PushContents,
    audience_of,
    contents_of_composed,
    moment_of,
    need_words,
    nobody_of,
    options_of,
    previews,
)
from console.send.snippets import snippets
from console.shell.error_words import FormProblem
from console.shell.page import AWAY, Page, shown_digest, visit_of
from console.shell.visit import Visit
from protos.accounts.v1.accounts_pb2 import TeamDevice
from protos.accounts.v1.drafts_pb2 import ApprovalNeed
from protos.registry.v1.apps_pb2 import PLATFORM_ANDROID, App, Pause
from services.domain.approval import has_rules
from services.domain.regions import REGIONS
from services.errors import (
    CarillonError,
    Code,
    ConflictError,
    ForbiddenError,
    InputError,
    NotFoundError,
    RetryLaterError,
)

MENDABLE = (InputError, ConflictError, NotFoundError, ForbiddenError, RetryLaterError)


class SendingPage(Page):
    """A page about a push of an app that is not sent yet: its form, or its review."""

    def zones(self, visit: Visit) -> Zones:
        return Zones(visit.zone, self.site.zone)

    def chosen(self, visit: Visit, app: App) -> ChosenApps:
        """Return the apps that the form names. InputError: the other one is not a partner of this app."""
        other = visit.form.get("other", "")
        if other and other not in [partner.appkey for partner in partners(self.site, visit, app)]:
            raise InputError(Code.NO_PARTNER)
        return ChosenApps(app.appkey, other) if app.platform == PLATFORM_ANDROID else ChosenApps(other, app.appkey)

    async def audiences(self, visit: Visit, composed: ComposedPush) -> list[Audience]:
        """Return the audiences with some of their devices, noted in the audit; without devices if the note fails.

        Errors as for Audiences.of.
        """
        audiences = await self.site.audiences.of(composed)
        try:
            for audience in audiences:
                if tokens := [sample.device.token for sample in audience.samples]:
                    await note_data_read(self.site, visit, audience.appkey, tokens=tokens)
        except AWAY:
            return [audience._replace(samples=()) for audience in audiences]
        return audiences

    def test_devices(self, composed: ComposedPush) -> list[TeamDevice]:
        """Return the test devices of the team that belong to an app of the push."""
        appkeys = composed.order.apps.appkeys
        team = self.site.accounts.team(self.site.accounts.team_of(appkeys[0]))
        return [device for device in team.test_devices if device.appkey in appkeys] if team else []

    def paused(self, appkeys: Sequence[str]) -> list[tuple[App, Pause]]:
        """Return the apps that are paused, each with the pause that holds; a push to one of them is refused."""
        apps = [self.app(appkey) for appkey in appkeys]
        of_all = self.site.apps.installation_pause
        pauses = [(app, app.pause if app.HasField("pause") else of_all) for app in apps]
        return [(app, pause) for app, pause in pauses if pause is not None]

    def show_form(self, request: Request, response: Response, app: App, form: Any, problem: str = "") -> None:
        self.show(
            request,
            response,
            "send/compose.html",
            400 if problem else 200,
            app=app,
            form=form,
            problem=problem,
            paused=self.paused([app.appkey]),
            partners=partners(self.site, visit_of(request), app),
            regions=sorted(REGIONS),
            articles=range(ARTICLES),
            audiences=self.site.apps.audiences(app.appkey),
        )

    def show_failure(
        self, request: Request, response: Response, app: App, error: CarillonError, *, may_be_sent: bool
    ) -> None:
        """Show the form again with the error that kept the push from being sent. Raises the error if it is a fault.

        `may_be_sent`: this attempt or an earlier one may have sent it. After an error that leaves this open the page
        asks to send the same push again, under the same key.
        """
        visit = visit_of(request)
        if may_be_sent and isinstance(error, AWAY):
            self.show(request, response, "send/unknown.html", 503, path=visit.path, fields=visit.form)
            return
        self.show_form(
            request,
            response,
            app,
            self.form_again(visit, app, visit.form.get("body", "")),
            problem_to_mend(error, visit),
        )

    def form_of(self, visit: Visit, app: App, text: str) -> dict[str, str]:
        """Return the form of a request, with the partner of the app that it names; empty if `text` is no request."""
        form = form_of_text(text, self.zones(visit))
        named = [partner.appkey for partner in partners(self.site, visit, app) if f'"{partner.appkey}"' in text]
        return form | {"other": named[0]} if form and named else form

    def form_again(self, visit: Visit, app: App, text: str) -> dict[str, str]:
        """Return the form of a request that a page shows again, and the draft or the task that it changes."""
        return self.form_of(visit, app, text) | {name: visit.form.get(name, "") for name in ("draft", "digest", "task")}

    async def show_review(
        self, request: Request, response: Response, app: App, composed: ComposedPush, problem: str = ""
    ) -> None:
        """Show what will be sent and to whom, with the button that sends it. Errors as for Audiences.of."""
        visit = visit_of(request)
        audiences = await self.audiences(visit, composed)
        devices = sum(audience.devices for audience in audiences)
        need, need_text = await self._need(visit, composed)
        self.show(
            request,
            response,
            "send/review.html",
            400 if problem else 200,
            app=app,
            composed=composed,
            problem=problem,
            audiences=[(self.app(audience.appkey), audience) for audience in audiences],
            devices=devices,
            paused=self.paused(composed.order.apps.appkeys),
            simulators=await simulators_of(self.site, map(self.app, composed.order.apps.appkeys)),
            need=need,
            need_words=need_text,
            test_devices=self.test_devices(composed),
            key=self.site.composed_pushes.new_key(),
            replaced=replaced_draft(visit),
            replaced_task=visit.form.get("task", ""),
            contents=self.contents(contents_of_composed(composed, visit.language)),
            **self.described(visit, composed),
        )

    async def _need(self, visit: Visit, composed: ComposedPush) -> tuple[ApprovalNeed | None, str]:
        """Return why the push needs an approval, and the words for that; the sending asks again in any case."""
        try:
            need = await approval_need(self.site, visit, composed)
        except AWAY:
            teams = [self.site.accounts.team(self.site.accounts.team_of(appkey)) for appkey in composed.appkeys]
            if not any(team and has_rules(team.rules) for team in teams):
                return None, ""
            return None, visit.gettext("Whether your team wants a second person to approve it is not known at present.")
        return need, need_words(need, visit.language, self.app)

    def contents(self, contents: Sequence[PushContents]) -> list[tuple[App, PushContents]]:
        """Return everything that a push has, with the app that gets it."""
        return [(self.app(each.appkey), each) for each in contents]

    def described(self, visit: Visit, composed: ComposedPush) -> dict[str, Any]:
        """Return the words, previews and examples of a push."""
        return {
            "previews": previews(composed, visit.gettext),
            "audience_words": audience_of(composed, visit.language),
            "options": options_of(composed, visit.language),
            "nobody": nobody_of(composed, visit.gettext),
            "moment": moment_of(composed.order.due_ms, visit),
            "snippets": snippets(composed.text, f"{self.site.v2_url}/v2/push", len(composed.appkeys)),
        }


def replaced_draft(visit: Visit) -> DraftVersion | None:
    """Return the draft that a form changes, and the version of it that was shown; None: it makes a push of its own."""
    draft_id = visit.form.get("draft", "")
    return DraftVersion(draft_id, shown_digest(visit)) if draft_id else None


def is_again(visit: Visit) -> bool:
    """Return whether the form repeats a push that an earlier attempt may have sent."""
    return "again" in visit.form


def words_of_old_key(visit: Visit) -> str:
    """Return the words for a form that is refused because its key is too old to prevent a second sending."""
    if is_again(visit):
        return visit.gettext(
            "It is still not known whether the push was sent. Look whether it is among the pushes before you send it"
            " once more."
        )
    return visit.gettext("You opened this page some minutes ago. Look at the numbers again, then send.")


def words_of_unknown_size(visit: Visit) -> str:
    return visit.gettext("How many devices would get it now is not known at present.")


def problem_to_mend(error: CarillonError, visit: Visit) -> FormProblem:
    """Return the words of an error that keeps a push from being sent. Raises the error if it is a fault."""
    if isinstance(error, AWAY):
        return FormProblem(
            visit.gettext(
                "Nothing was sent: a part of the service that is needed does not answer at present. Try again in a"
                " moment."
            )
        )
    if not isinstance(error, MENDABLE):
        raise error
    return visit.language.problem(error, visit.form)
