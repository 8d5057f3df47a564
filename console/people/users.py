"""Users: the list, an invitation by one-time link, and one user, whom administrators of the installation change."""

from falcon.asgi import Request, Response

from console.people.changes import shown_changes, words_of_waiting
from console.shell.page import AWAY, Page, go_to, problem_of, visit_of
from protos.accounts.v1.accounts_pb2 import MemberRole
from protos.accounts.v1.service_pb2 import (
    CreateUserRequest,
    GetUsersRequest,
    ListUsersRequest,
    ResetPasswordRequest,
    SetMemberRequest,
    UpdateUserRequest,
    UserSummary,
)
from services.errors import CarillonError, Code, NotFoundError

CHANGES = {
    "disable": UpdateUserRequest(disabled=True),
    "enable": UpdateUserRequest(disabled=False),
    "make-administrator": UpdateUserRequest(administrator=True),
    "no-administrator": UpdateUserRequest(administrator=False),
    "end-sessions": UpdateUserRequest(end_sessions=True),
    "remove-second-factor": UpdateUserRequest(remove_totp=True),
}
"""What the buttons of a user's page change, by the value of the form."""

NEW_LINK = "new-link"


class UsersPage(Page):
    """GET lists all users, and the changes of users that wait for another administrator."""

    async def on_get(self, request: Request, response: Response) -> None:
        users = (await self.site.roles.accounts.ListUsers(ListUsersRequest())).users
        changes = await shown_changes(self.site, visit_of(request))
        self.show(request, response, "people/users.html", users=users, changes=changes)


class NewUserPage(Page):
    """GET shows the form; POST creates a user, in a team if one is chosen, and shows the one-time link once."""

    async def on_get(self, request: Request, response: Response) -> None:
        self._show(request, response)

    async def on_post(self, request: Request, response: Response) -> None:
        visit = visit_of(request)
        form = visit.form
        asked = CreateUserRequest(
            login=form.get("login", "").strip(),
            display_name=form.get("display_name", "").strip(),
            administrator=form.get("administrator") == "on",
            origin=visit.origin,
        )
        team_id, role = form.get("team_id", ""), role_of(form.get("role", ""))
        accounts = self.site.roles.accounts
        try:
            made = await accounts.CreateUser(asked)
        except CarillonError as error:
            self._show(request, response, problem_of(error, visit))
            return
        notice = visit.gettext("The user is created.")
        if made.HasField("pending"):
            notice = f"{notice} {words_of_waiting(visit)}"
        if team_id and role:
            joined = SetMemberRequest(team_id=team_id, user_id=made.user.user_id, role=role, origin=visit.origin)
            try:
                if (await accounts.SetMember(joined)).HasField("pending"):
                    notice = f"{notice} {words_of_waiting(visit)}"
            except AWAY:
                notice = visit.gettext(
                    "The user is created, but may not belong to the team yet: look at the page of the team."
                )
            except CarillonError as error:
                notice = f"{notice} {problem_of(error, visit)}"
        await self.site.accounts.refresh()
        visit.notify(notice, shown_once=self.site.link_url(made.link_token))
        raise go_to(f"/users/{made.user.user_id}")

    def _show(self, request: Request, response: Response, problem: str = "") -> None:
        form, teams = visit_of(request).form, self.site.accounts.teams()
        status = 400 if problem else 200
        self.show(request, response, "people/new_user.html", status, problem=problem, teams=teams, form=form)


class UserPage(Page):
    """GET shows a user with the teams; POST makes one of CHANGES, or a one-time link for another password."""

    async def on_get(self, request: Request, response: Response, user_id: str) -> None:
        await self._show(request, response, user_id)

    async def on_post(self, request: Request, response: Response, user_id: str) -> None:
        visit = visit_of(request)
        change = visit.form.get("change", "")
        accounts = self.site.roles.accounts
        try:
            if change == NEW_LINK:
                made = await accounts.ResetPassword(ResetPasswordRequest(user_id=user_id, origin=visit.origin))
                if made.HasField("pending"):
                    visit.notify(words_of_waiting(visit))
                else:
                    visit.notify(visit.gettext("There is a new link."), shown_once=self.site.link_url(made.link_token))
            elif change in CHANGES:
                asked = UpdateUserRequest(user_id=user_id, origin=visit.origin)
                asked.MergeFrom(CHANGES[change])
                is_pending = (await accounts.UpdateUser(asked)).HasField("pending")
                await self.site.accounts.refresh()
                visit.notify(words_of_waiting(visit) if is_pending else visit.gettext("The user is changed."))
            else:
                await self._show(request, response, user_id, visit.gettext("Choose what to change."))
                return
        except CarillonError as error:
            await self._show(request, response, user_id, problem_of(error, visit))
            return
        raise go_to(f"/users/{user_id}")

    async def _show(self, request: Request, response: Response, user_id: str, problem: str = "") -> None:
        user = await user_summary(self, user_id)
        self.show(
            request,
            response,
            "people/user.html",
            400 if problem else 200,
            user=user,
            teams=[
                (team, member.role)
                for team in self.site.accounts.teams()
                for member in team.members
                if member.user_id == user_id
            ],
            problem=problem,
        )


async def user_summary(page: Page, user_id: str) -> UserSummary:
    """Return the user as accounts knows it. NotFoundError: there is none with this id."""
    users = (await page.site.roles.accounts.GetUsers(GetUsersRequest(user_ids=[user_id]))).users
    if not users:
        raise NotFoundError(Code.NO_SUCH_USER, user_id=user_id)
    return users[0]


def role_of(name: str) -> "MemberRole.ValueType":
    """Return the role that a form names; unspecified for any other text."""
    known = {role.removeprefix("MEMBER_ROLE_").lower(): number for role, number in MemberRole.items()}
    return known.get(name, MemberRole.MEMBER_ROLE_UNSPECIFIED)
