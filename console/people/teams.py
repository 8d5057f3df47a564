"""Teams with their members, apps, approval rules and API tokens."""

from collections.abc import Mapping

from falcon.asgi import Request, Response

from console.people.changes import shown_changes, words_of_waiting
from console.people.users import role_of
from console.shell.backend import team_of
from console.shell.numbers import whole_number
from console.shell.page import Page, go_to, problem_of, shown_text, shown_values, visit_of
from protos.accounts.v1.accounts_pb2 import ApprovalRules, Team
from protos.accounts.v1.service_pb2 import (
    CreateTeamRequest,
    CreateTokenRequest,
    GetUsersRequest,
    GiveAppRequest,
    ListTokensRequest,
    RevokeTokenRequest,
    SetMemberRequest,
    UpdateTeamRequest,
)
from protos.registry.v1.apps_pb2 import App
from services.domain.approval import MAX_SHARE_PERCENT, share_percent
from services.domain.permissions import Action
from services.errors import CarillonError, Code, InputError, NotFoundError

MAX_DEVICES = 2**53
"""The largest number of devices that an approval rule may name."""


class TeamsPage(Page):
    """GET lists the teams that the user may see."""

    async def on_get(self, request: Request, response: Response) -> None:
        visit = visit_of(request)
        await self.site.accounts.refresh()
        teams = self.visible_teams(visit)
        app_counts = {team.team_id: 0 for team in teams}
        for app in self.site.apps.all():
            team_id = self.site.accounts.team_of(app.appkey)
            if team_id in app_counts:
                app_counts[team_id] += 1
        self.show(request, response, "people/teams.html", teams=teams, app_counts=app_counts)


class NewTeamPage(Page):
    """GET shows the form; POST creates the team."""

    async def on_get(self, request: Request, response: Response) -> None:
        self.show(request, response, "people/new_team.html", problem="", name="")

    async def on_post(self, request: Request, response: Response) -> None:
        visit = visit_of(request)
        name = visit.form.get("name", "").strip()
        try:
            made = await self.site.roles.accounts.CreateTeam(CreateTeamRequest(name=name, origin=visit.origin))
        except CarillonError as error:
            self.show(request, response, "people/new_team.html", 400, problem=problem_of(error, visit), name=name)
            return
        await self.site.accounts.refresh()
        visit.notify(visit.gettext("The team is created."))
        raise go_to(f"/teams/{made.team.team.team_id}")


class TeamPageBase(Page):
    """The base of the page of a team and of its forms, which have routes of their own since each needs another role."""

    async def show_team(self, request: Request, response: Response, team_id: str, problem: str = "") -> None:
        """Answer with the page of the team. `problem`: what keeps one of its forms from being accepted."""
        visit = visit_of(request)
        team = self._team(team_id)
        may_tokens = visit.may(Action.MANAGE_TOKENS, team_id)
        accounts = self.site.roles.accounts
        listed = await accounts.ListTokens(ListTokensRequest(team_ids=[team_id])) if may_tokens else None
        tokens = list(listed.tokens) if listed else []
        user_ids = {member.user_id for member in team.members} | {token.created_by for token in tokens} - {""}
        users = (await accounts.GetUsers(GetUsersRequest(user_ids=sorted(user_ids)))).users
        of_team, others = self._apps(team_id)
        may_manage = visit.may(Action.MANAGE_TEAM, team_id)
        self.show(
            request,
            response,
            "people/team.html",
            400 if problem else 200,
            team=team,
            users={user.user_id: user for user in users},
            apps=of_team,
            others=others,
            tokens=tokens,
            may_manage=may_manage,
            changes=await shown_changes(self.site, visit, [team_id]) if may_manage else [],
            may_tokens=may_tokens,
            may_give=visit.may(Action.MANAGE_TEAMS),
            now_ms=self.site.clock.now_ms(),
            form=visit.form,
            shown=visit.form.get("shown") or shown_text(_form_of(team)),
            problem=problem,
        )

    def _team(self, team_id: str) -> Team:
        return team_of(self.site, team_id)

    def _apps(self, team_id: str) -> tuple[list[App], list[App]]:
        """Return the apps of the team, and all others, each by name."""
        apps = sorted(self.site.apps.all(), key=lambda app: (app.name.casefold(), app.appkey))
        is_of_team = [self.site.accounts.team_of(app.appkey) == team_id for app in apps]
        pairs = list(zip(apps, is_of_team, strict=True))
        return [app for app, of_team in pairs if of_team], [app for app, of_team in pairs if not of_team]


class TeamPage(TeamPageBase):
    """GET shows a team: members, approval rules, apps, and for those who manage them its API tokens."""

    async def on_get(self, request: Request, response: Response, team_id: str) -> None:
        await self.show_team(request, response, team_id)


class TeamSettingsPage(TeamPageBase):
    """POST changes the name and the approval rules of a team, where they differ from the form that was shown."""

    async def on_post(self, request: Request, response: Response, team_id: str) -> None:
        visit = visit_of(request)
        try:
            await self.site.accounts.refresh()
            change = _change_of(self._team(team_id), visit.form, shown_values(visit))
            change.origin.CopyFrom(visit.origin)
            changed = await self.site.roles.accounts.UpdateTeam(change)
        except CarillonError as error:
            await self.show_team(request, response, team_id, problem_of(error, visit))
            return
        await self.site.accounts.refresh()
        is_pending = changed.HasField("pending")
        visit.notify(words_of_waiting(visit) if is_pending else visit.gettext("The team is changed."))
        raise go_to(f"/teams/{team_id}")


class TeamMembersPage(TeamPageBase):
    """POST gives the user with a log-in name a role in the team, or takes it away where no role is named."""

    async def on_post(self, request: Request, response: Response, team_id: str) -> None:
        visit = visit_of(request)
        accounts = self.site.roles.accounts
        login = visit.form.get("login", "").strip()
        found = (await accounts.GetUsers(GetUsersRequest(logins=[login]))).users
        if not found:
            problem = visit.gettext("Nobody has the log-in name %(login)s.") % {"login": login}
            await self.show_team(request, response, team_id, problem)
            return
        asked = SetMemberRequest(
            team_id=team_id, user_id=found[0].user_id, role=role_of(visit.form.get("role", "")), origin=visit.origin
        )
        try:
            changed = await accounts.SetMember(asked)
        except CarillonError as error:
            await self.show_team(request, response, team_id, problem_of(error, visit))
            return
        await self.site.accounts.refresh()
        is_pending = changed.HasField("pending")
        visit.notify(words_of_waiting(visit) if is_pending else visit.gettext("The members are changed."))
        is_own = visit.actor.name == f"user/{asked.user_id}" and not is_pending
        raise go_to("/teams" if is_own else f"/teams/{team_id}")


class TeamAppsPage(TeamPageBase):
    """POST gives an app to the team, or takes it from its team."""

    async def on_post(self, request: Request, response: Response, team_id: str) -> None:
        visit = visit_of(request)
        appkey, is_taken = visit.form.get("appkey", ""), visit.form.get("change") == "take"
        asked = GiveAppRequest(appkey=appkey, team_id="" if is_taken else team_id, origin=visit.origin)
        try:
            if is_taken and self.site.accounts.team_of(appkey) != team_id:
                raise NotFoundError(Code.TEAM_WITHOUT_APP)
            answer = await self.site.roles.accounts.GiveApp(asked)
        except CarillonError as error:
            await self.show_team(request, response, team_id, problem_of(error, visit))
            return
        await self.site.accounts.refresh()
        given, taken = visit.gettext("The app belongs to the team."), visit.gettext("The app belongs to no team.")
        visit.notify(words_of_waiting(visit) if answer.HasField("pending") else taken if is_taken else given)
        raise go_to(f"/teams/{team_id}")


def _form_of(team: Team) -> dict[str, str]:
    """Return the fields of the form of a team's settings."""
    above = str(team.rules.above_devices) if team.rules.HasField("above_devices") else ""
    share = str(share_percent(team.rules))
    broadcasts = "on" if team.rules.broadcasts else ""
    erasures = "on" if team.rules.erasures else ""
    return {
        "name": team.name,
        "broadcasts": broadcasts,
        "above_devices": above,
        "share_percent": share,
        "erasures": erasures,
    }


def _change_of(team: Team, form: Mapping[str, str], shown: Mapping[str, str]) -> UpdateTeamRequest:
    """Return the change of the fields that differ from the form that was shown.

    InputError: the number of devices or the share is invalid.
    """
    given = {name: form.get(name, "").strip() for name in _form_of(team)}
    differing = {name for name, value in given.items() if value != shown.get(name)}
    differing -= set() if given["share_percent"] else {"share_percent"}
    change = UpdateTeamRequest(team_id=team.team_id, name=given["name"] if "name" in differing else None)
    rules = ApprovalRules()
    rules.CopyFrom(team.rules)
    if "broadcasts" in differing:
        rules.broadcasts = given["broadcasts"] == "on"
    if "erasures" in differing:
        rules.erasures = given["erasures"] == "on"
    if "above_devices" in differing:
        rules.ClearField("above_devices")
        if above := given["above_devices"]:
            if (number := whole_number(above, MAX_DEVICES)) is None:
                raise InputError(Code.NO_WHOLE_NUMBER_OR_EMPTY, at="above_devices")
            rules.above_devices = number
    if "share_percent" in differing:
        share = whole_number(given["share_percent"], MAX_SHARE_PERCENT)
        if not share:
            raise InputError(Code.OUT_OF_BOUNDS, at="share_percent", least=1, most=MAX_SHARE_PERCENT)
        rules.share_percent = share
    if differing - {"name"}:
        change.rules.CopyFrom(rules)
    return change


# API tokens of a team: made with their text shown once, and revoked.

EXPIRES_S = {"30d": 30 * 86_400, "90d": 90 * 86_400, "365d": 365 * 86_400, "never": 0}
"""How long a token is valid, by the value of the form; 0: it does not expire."""


class TokensPage(TeamPageBase):
    """POST makes a token and shows its text once, on the page of the team."""

    async def on_post(self, request: Request, response: Response, team_id: str) -> None:
        visit = visit_of(request)
        asked = CreateTokenRequest(
            team_id=team_id,
            name=visit.form.get("token_name", "").strip(),
            role=role_of(visit.form.get("token_role", "")),
            expires_in_s=EXPIRES_S.get(visit.form.get("expires", ""), EXPIRES_S["90d"]),
            origin=visit.origin,
        )
        try:
            made = await self.site.roles.accounts.CreateToken(asked)
        except CarillonError as error:
            await self.show_team(request, response, team_id, problem_of(error, visit))
            return
        visit.notify(visit.gettext("The API token is created."), shown_once=made.text)
        raise go_to(f"/teams/{team_id}")


class RevokeTokenPage(TeamPageBase):
    """POST revokes a token of the team; it is refused from then on."""

    async def on_post(self, request: Request, response: Response, team_id: str, token_id: str) -> None:
        visit = visit_of(request)
        accounts = self.site.roles.accounts
        tokens = (await accounts.ListTokens(ListTokensRequest(team_ids=[team_id]))).tokens
        try:
            if token_id not in {token.token_id for token in tokens}:
                raise NotFoundError(Code.TEAM_WITHOUT_TOKEN)
            await accounts.RevokeToken(RevokeTokenRequest(token_id=token_id, origin=visit.origin))
        except CarillonError as error:
            await self.show_team(request, response, team_id, problem_of(error, visit))
            return
        visit.notify(visit.gettext("The API token is revoked."))
        raise go_to(f"/teams/{team_id}")
