"""Changes and erasures that wait for another administrator: shown, confirmed and rejected."""

from collections.abc import Sequence
from typing import NamedTuple

from falcon.asgi import Request, Response

from console.shell.page import Page, Site, go_to, problem_of, visit_of
from console.shell.visit import Visit
from protos.accounts.v1.accounts_pb2 import PendingChange
from protos.accounts.v1.service_pb2 import DecideChangeRequest, DecideChangeResponse, ListChangesRequest
from services.domain.permissions import Action
from services.domain.sealing import is_name
from services.errors import CarillonError, Code, NotFoundError, PermissionDeniedError


class ShownChange(NamedTuple):
    """A change that waits, with the names of people and teams in it. `is_own`: the reader has proposed it."""

    change: PendingChange
    proposed_by: str
    subject: str
    is_own: bool


async def shown_erasures(site: Site, visit: Visit, appkey: str) -> list[ShownChange]:
    """Return the erasures of persons of an app that wait, for those who may decide about them."""
    team_id = site.accounts.team_of(appkey)
    if not team_id or not visit.may(Action.MANAGE_TEAM, team_id):
        return []
    shown = await shown_changes(site, visit, [team_id])
    return [each for each in shown if each.change.erase.appkey == appkey]


async def shown_changes(site: Site, visit: Visit, team_ids: Sequence[str] = ()) -> list[ShownChange]:
    """Return the changes of these teams that wait; without teams those of users."""
    found = await site.roles.accounts.ListChanges(ListChangesRequest(team_ids=team_ids))
    return [
        ShownChange(
            change,
            site.accounts.name_of(change.proposed_by),
            _subject(site, change),
            visit.actor.name in site.accounts.authors(change.proposed_by),
        )
        for change in found.changes
        if bool(change.team_id) == bool(team_ids)
    ]


def words_of_waiting(visit: Visit) -> str:
    """Return the notice for a change that waits for another administrator."""
    return visit.gettext(
        "This would loosen what needs a second person, so it waits until another administrator of the team or of the"
        " installation confirms it. Where there is none, an operator can do it on the machine."
    )


class TeamChangesPage(Page):
    """POST confirms or rejects a change of a team that waits."""

    async def on_post(self, request: Request, response: Response, team_id: str) -> None:
        await _decide(self.site, visit_of(request), f"/teams/{team_id}", [team_id])


class UserChangesPage(Page):
    """POST confirms or rejects a change of a user that waits; whoever confirms a new link is shown it."""

    async def on_post(self, request: Request, response: Response) -> None:
        await _decide(self.site, visit_of(request), "/users", ())


async def _decide(site: Site, visit: Visit, path: str, team_ids: Sequence[str]) -> None:
    change_id, confirmed = visit.form.get("change_id", ""), visit.form.get("decision") == "confirm"
    waiting = {shown.change.change_id: shown.change for shown in await shown_changes(site, visit, team_ids)}
    try:
        if change_id not in waiting:
            raise NotFoundError(Code.CHANGE_DECIDED)
        asked = DecideChangeRequest(change_id=change_id, confirmed=confirmed, origin=visit.origin)
        answer: DecideChangeResponse = await site.roles.accounts.DecideChange(asked)
    except PermissionDeniedError:
        raise
    except CarillonError as error:
        visit.notify(str(problem_of(error, visit)))
        raise go_to(path) from error
    await site.accounts.refresh()
    notice = (
        visit.gettext("The change is confirmed and made.") if confirmed else visit.gettext("The change is rejected.")
    )
    if waiting[change_id].HasField("erase"):
        await site.erasures.refresh()
        visit.notify(
            visit.gettext("The erasure is confirmed. Each role forgets the person now.")
            if confirmed
            else visit.gettext("The erasure is rejected: nobody is erased.")
        )
        raise go_to(f"/apps/{waiting[change_id].erase.appkey}/erasures")
    if answer.link_token:
        visit.notify(notice, shown_once=site.link_url(answer.link_token))
        raise go_to(f"/users/{waiting[change_id].new_link}")
    visit.notify(notice)
    raise go_to(path)


def _subject(site: Site, change: PendingChange) -> str:
    """Return the name of the user or the app that a change is about."""
    match change.WhichOneof("change"):
        case "member":
            return site.accounts.name_of(f"user/{change.member.user_id}")
        case "administrator":
            return site.accounts.name_of(f"user/{change.administrator}")
        case "new_link":
            return site.accounts.name_of(f"user/{change.new_link}")
        case "erase":
            value = change.erase.alias or change.erase.token
            return "" if is_name(value) else value
        case "app":
            app = site.apps.get(change.app.appkey)
            return app.name if app else change.app.appkey
        case _:
            return ""
