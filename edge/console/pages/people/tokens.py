"""API tokens of a team: made with their text shown once, and revoked."""

from falcon.asgi import Request, Response

from edge.console.pages.page import go_to, problem_of, visit_of
from edge.console.pages.people.teams import TeamPageBase
from edge.console.pages.people.users import role_of
from protos.accounts.v1.service_pb2 import CreateTokenRequest, ListTokensRequest, RevokeTokenRequest
from services.runtime.errors import CarillonError, NotFoundError

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
                raise NotFoundError("this team has no such API token any more")
            await accounts.RevokeToken(RevokeTokenRequest(token_id=token_id, origin=visit.origin))
        except CarillonError as error:
            await self.show_team(request, response, team_id, problem_of(error, visit))
            return
        visit.notify(visit.gettext("The API token is revoked."))
        raise go_to(f"/teams/{team_id}")
