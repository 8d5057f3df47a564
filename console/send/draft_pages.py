"""Drafts: pushes that wait for the approval of a second person."""

from falcon.asgi import Request, Response

from console.send.actions import decide_draft, draft_of, drafts_of
from console.send.audience import Audience
from console.send.composed_pushes import ComposedPush
from console.send.for_test_devices import at_once
from console.send.page import SendingPage, problem_to_mend, words_of_unknown_size
from console.send.preview import contents_of_sends, need_words
from console.shell.page import AWAY, Page, go_to, shown_digest, sought_words, visit_of
from protos.accounts.v1.drafts_pb2 import (
    DecideDraftRequest,
    Draft,
    DraftApproved,
    DraftRejected,
    DraftStatus,
    DraftWithdrawn,
    StoredDraft,
)
from services.domain.permissions import Action
from services.errors import CarillonError, InputError

PAGE_DRAFTS = 100
STATUS_NAMES = {value: name.removeprefix("DRAFT_STATUS_").lower() for name, value in DraftStatus.items()}


class DraftsPage(Page):
    """GET lists the drafts of the user's teams, those that wait first: those with `q` in their title or text. `page` is
    the number of the page."""

    async def on_get(self, request: Request, response: Response) -> None:
        visit = visit_of(request)
        teams = {team.team_id: team.name for team in self.site.accounts.teams() if visit.may(Action.VIEW, team.team_id)}
        number = request.get_param_as_int("page", min_value=1, max_value=10_000) or 1
        before = (number - 1) * PAGE_DRAFTS
        sought = sought_words(request)
        drafts = await drafts_of(
            self.site, list(teams), waiting_first=True, words=sought, offset=before, limit=PAGE_DRAFTS + 1
        )
        self.show(
            request,
            response,
            "send/drafts.html",
            drafts=drafts[:PAGE_DRAFTS],
            teams=teams,
            sought=sought,
            names=STATUS_NAMES,
            authors={draft.draft_id: self._author(draft) for draft in (stored.draft for stored in drafts)},
            page=number,
            has_more=len(drafts) > PAGE_DRAFTS,
        )

    def _author(self, draft: Draft) -> str:
        """Return the name of the draft's first author."""
        return self.site.accounts.name_of(draft.authors[0]) if draft.authors else ""


class DraftPageBase(SendingPage):
    """A page about one draft, which it shows with the buttons that decide it."""

    async def show_draft(
        self, request: Request, response: Response, team_id: str, draft_id: str, problem: str = ""
    ) -> None:
        visit = visit_of(request)
        stored = await draft_of(self.site, team_id, draft_id)
        pushes = stored.draft.task.pushes
        composed = self._composed(stored)
        audiences: list[Audience] = []
        is_waiting = stored.status == DraftStatus.DRAFT_STATUS_WAITING
        if any(self.site.accounts.team_of(push.appkey) != team_id for push in pushes):
            told = visit.gettext("The app does not belong to the team any more. Withdraw the draft.")
            problem = problem or (told if is_waiting else "")
        elif composed is not None and is_waiting:
            try:
                audiences = await self.audiences(visit, composed)
            except AWAY:
                problem = problem or words_of_unknown_size(visit)
        self.show(
            request,
            response,
            "send/draft.html",
            400 if problem else 200,
            problem=problem,
            stored=stored,
            draft=stored.draft,
            state=STATUS_NAMES[stored.status],
            app=self.app(pushes[0].appkey),
            msgids=[(self.app(push.appkey), push.msgid) for push in pushes],
            authors=[self.site.accounts.name_of(name) for name in stored.draft.authors],
            changed_by=self.site.accounts.name_of(stored.draft.changed_by),
            decided_by=self.site.accounts.name_of(stored.decided_by),
            audiences=[(self.app(audience.appkey), audience) for audience in audiences],
            devices=sum(audience.devices for audience in audiences),
            need_words=need_words(stored.draft.need, visit.language, self.app),
            contents=self.contents(contents_of_sends(pushes, visit.language)),
            may_approve=is_waiting
            and visit.may(Action.APPROVE, team_id)
            and visit.actor.name not in stored.draft.authors,
            may_reject=is_waiting and visit.may(Action.APPROVE, team_id),
            may_change=is_waiting and visit.may(Action.SEND, team_id),
            may_copy=STATUS_NAMES[stored.status] in ("rejected", "withdrawn", "expired")
            and all(visit.may_app(Action.SEND, push.appkey) for push in pushes),
            described=self.described(visit, composed) if composed is not None else None,
        )

    def _composed(self, stored: StoredDraft) -> ComposedPush | None:
        """Return the push of a draft, due when its task is; None if the rules that hold now would refuse it."""
        draft = stored.draft
        try:
            composed = self.site.composed_pushes.read(body_of_draft(draft), at_ms=draft.changed_ms or draft.created_ms)
        except InputError:
            return None
        return composed._replace(order=composed.order._replace(due_ms=draft.task.due_ms or None))

    async def decide(
        self, request: Request, response: Response, decision: DecideDraftRequest, team_id: str, notice: str
    ) -> None:
        """Decide a draft and show what became of it; a draft that was decided meanwhile is shown with the reason."""
        visit = visit_of(request)
        try:
            await decide_draft(self.site, visit, decision, team_id)
        except CarillonError as error:
            problem = (
                visit.gettext(
                    "A part of the service did not answer in time. The state of the draft below says whether it was"
                    " done; load this page again in a moment to be sure."
                )
                if isinstance(error, AWAY)
                else problem_to_mend(error, visit)
            )
            await self.show_draft(request, response, team_id, decision.draft_id, problem)
            return
        visit.notify(notice)
        raise go_to(f"/drafts/{team_id}/{decision.draft_id}")


def body_of_draft(draft: Draft) -> str:
    """Return the text of a draft's request; without the time of one that fell due as a timed push, which is over."""
    text = draft.body_json.decode()
    return at_once(text) if draft.held_task_key else text


class DraftPage(DraftPageBase):
    """GET shows a draft."""

    async def on_get(self, request: Request, response: Response, team_id: str, draft_id: str) -> None:
        await self.show_draft(request, response, team_id, draft_id)


class ApprovePage(DraftPageBase):
    """POST approves exactly the draft that was shown, which is sent then, or at its time."""

    async def on_post(self, request: Request, response: Response, team_id: str, draft_id: str) -> None:
        visit = visit_of(request)
        decision = DecideDraftRequest(draft_id=draft_id, approved=DraftApproved(digest=shown_digest(visit)))
        due_ms = (await draft_of(self.site, team_id, draft_id)).draft.task.due_ms
        notice = visit.gettext("The push is approved and sent.")
        if due_ms:
            scheduled = visit.gettext("The push is approved; it is sent at %(time)s.")
            notice = scheduled % {"time": visit.language.moment(due_ms, visit.zone)}
        await self.decide(request, response, decision, team_id, notice)


class RejectPage(DraftPageBase):
    """POST rejects a draft, with a reason for its author."""

    async def on_post(self, request: Request, response: Response, team_id: str, draft_id: str) -> None:
        visit = visit_of(request)
        reason = visit.form.get("reason", "").strip()
        decision = DecideDraftRequest(draft_id=draft_id, rejected=DraftRejected(reason=reason))
        await self.decide(request, response, decision, team_id, visit.gettext("The push is rejected."))


class WithdrawPage(DraftPageBase):
    """POST takes a draft back."""

    async def on_post(self, request: Request, response: Response, team_id: str, draft_id: str) -> None:
        decision = DecideDraftRequest(draft_id=draft_id, withdrawn=DraftWithdrawn())
        notice = visit_of(request).gettext("The push is withdrawn.")
        await self.decide(request, response, decision, team_id, notice)
