"""AccountsService: users, teams and API tokens, changed by operators and administrators."""

from collections.abc import Callable
from typing import TypeVar

from protos.accounts.v1.accounts_pb2 import AccountFact
from protos.accounts.v1.service_pb2 import (
    CreateTeamRequest,
    CreateTeamResponse,
    CreateTokenRequest,
    CreateTokenResponse,
    CreateUserRequest,
    CreateUserResponse,
    DecideChangeRequest,
    DecideChangeResponse,
    ErasePersonRequest,
    ErasePersonResponse,
    GetUsersRequest,
    GetUsersResponse,
    GiveAppRequest,
    GiveAppResponse,
    ListChangesRequest,
    ListChangesResponse,
    ListTeamsRequest,
    ListTeamsResponse,
    ListTokensRequest,
    ListTokensResponse,
    ListUsersRequest,
    ListUsersResponse,
    ResetPasswordRequest,
    ResetPasswordResponse,
    RevokeTokenRequest,
    RevokeTokenResponse,
    SealAnewRequest,
    SealAnewResponse,
    SetMemberRequest,
    SetMemberResponse,
    SetTestDevicesRequest,
    SetTestDevicesResponse,
    UpdateTeamRequest,
    UpdateTeamResponse,
    UpdateUserRequest,
    UpdateUserResponse,
)
from protos.accounts.v1.service_pb2_grpc import AccountsServiceServicer
from services.accounts import decide, decide_teams
from services.accounts.erasures import PersonErasures
from services.accounts.fact_writer import FactWriter
from services.accounts.store import AccountTable
from services.accounts.summaries import summary_of_team, summary_of_user, token_summary, user_summary
from services.domain.apps import OUTDATED, AppDirectory
from services.domain.master_key import Keys
from services.domain.secret_texts import LINK_PREFIX, TOKEN_PREFIX, new_id, new_secret_text
from services.domain.text import check_texts
from services.errors import UnavailableError
from services.net.rpc.server import Context
from services.process.clock import Clock
from services.replica.follower import Follower

Result = TypeVar("Result")


class AccountsServicer(AccountsServiceServicer):
    """Answers calls about users, teams and tokens. Changes are decided one at a time.

    All queries run in the follower's thread, with `committed`.
    """

    def __init__(
        self,
        follower: Follower,
        committed: AccountTable,
        writer: FactWriter,
        keys: Keys,
        apps: AppDirectory,
        erasures: PersonErasures,
        clock: Clock,
    ) -> None:
        self._follower = follower
        self._committed = committed
        self._writer = writer
        self._keys = keys
        self._apps = apps
        self._erasures = erasures
        self._clock = clock

    async def CreateUser(self, request: CreateUserRequest, context: Context) -> CreateUserResponse:
        check_texts(request)
        user_id, link = new_id(), new_secret_text(LINK_PREFIX)
        facts = await self._writer.write_for(
            request.origin,
            lambda accounts, actor, now_ms: decide.create_user(accounts, actor, request, user_id, link, now_ms),
        )
        user = await self._query(lambda accounts: summary_of_user(accounts, user_id))
        pending = decide.pending_of(facts)
        if not facts[-1].HasField("link"):
            return CreateUserResponse(user=user, pending=pending)
        expires_ms = facts[-1].link.expires_ms
        return CreateUserResponse(user=user, link_token=link.text, link_expires_ms=expires_ms, pending=pending)

    async def UpdateUser(self, request: UpdateUserRequest, context: Context) -> UpdateUserResponse:
        check_texts(request)
        facts = await self._writer.write_for(
            request.origin, lambda accounts, actor, now_ms: decide.update_user(accounts, actor, request, now_ms)
        )
        user = await self._query(lambda accounts: summary_of_user(accounts, request.user_id))
        return UpdateUserResponse(user=user, pending=decide.pending_of(facts))

    async def ResetPassword(self, request: ResetPasswordRequest, context: Context) -> ResetPasswordResponse:
        check_texts(request)
        link = new_secret_text(LINK_PREFIX)
        (fact,) = await self._writer.write_for(
            request.origin,
            lambda accounts, actor, now_ms: decide.reset_password(accounts, actor, request.user_id, link, now_ms),
        )
        if fact.HasField("change_proposed"):
            return ResetPasswordResponse(pending=fact.change_proposed.change)
        return ResetPasswordResponse(link_token=link.text, link_expires_ms=fact.link.expires_ms)

    async def GetUsers(self, request: GetUsersRequest, context: Context) -> GetUsersResponse:
        def find(accounts: AccountTable) -> GetUsersResponse:
            found = [accounts.user(user_id) for user_id in request.user_ids]
            found += [accounts.user_of_login(login) for login in request.logins]
            return GetUsersResponse(users=[user_summary(accounts, user) for user in found if user])

        return await self._query(find)

    async def ListUsers(self, request: ListUsersRequest, context: Context) -> ListUsersResponse:
        return await self._query(
            lambda accounts: ListUsersResponse(users=[user_summary(accounts, user) for user in accounts.users()])
        )

    async def SealAnew(self, request: SealAnewRequest, context: Context) -> SealAnewResponse:
        check_texts(request)
        if not await self._apps.refresh():
            raise UnavailableError(OUTDATED)

        def seal(accounts: AccountTable, now_ms: int) -> tuple[int, list[AccountFact]]:
            facts = decide.seal_anew(accounts, self._keys.sealed_anew)
            return len(facts), facts

        return SealAnewResponse(users_sealed=await self._writer.write(seal, request.origin))

    async def CreateTeam(self, request: CreateTeamRequest, context: Context) -> CreateTeamResponse:
        check_texts(request)
        team_id = new_id()
        await self._writer.write_for(
            request.origin,
            lambda accounts, actor, now_ms: decide_teams.create_team(accounts, actor, request.name, team_id, now_ms),
        )
        return CreateTeamResponse(team=await self._query(lambda accounts: summary_of_team(accounts, team_id)))

    async def UpdateTeam(self, request: UpdateTeamRequest, context: Context) -> UpdateTeamResponse:
        check_texts(request)
        facts = await self._writer.write_for(
            request.origin, lambda accounts, actor, now_ms: decide_teams.update_team(accounts, actor, request, now_ms)
        )
        team = await self._query(lambda accounts: summary_of_team(accounts, request.team_id))
        return UpdateTeamResponse(team=team, pending=decide.pending_of(facts))

    async def SetMember(self, request: SetMemberRequest, context: Context) -> SetMemberResponse:
        check_texts(request)
        facts = await self._writer.write_for(
            request.origin, lambda accounts, actor, now_ms: decide_teams.set_member(accounts, actor, request, now_ms)
        )
        team = await self._query(lambda accounts: summary_of_team(accounts, request.team_id))
        return SetMemberResponse(team=team, pending=decide.pending_of(facts))

    async def SetTestDevices(self, request: SetTestDevicesRequest, context: Context) -> SetTestDevicesResponse:
        check_texts(request)
        await self._writer.write_for(
            request.origin,
            lambda accounts, actor, now_ms: decide_teams.set_test_devices(accounts, actor, request),
        )
        team = await self._query(lambda accounts: summary_of_team(accounts, request.team_id))
        return SetTestDevicesResponse(team=team)

    async def GiveApp(self, request: GiveAppRequest, context: Context) -> GiveAppResponse:
        check_texts(request)
        is_current = await self._apps.refresh()
        app_exists = self._apps.get(request.appkey) is not None
        if not app_exists and not is_current:
            raise UnavailableError(OUTDATED)
        facts = await self._writer.write_for(
            request.origin,
            lambda accounts, actor, now_ms: decide_teams.give_app(
                accounts, actor, request, now_ms, app_exists=app_exists
            ),
        )
        return GiveAppResponse(pending=decide.pending_of(facts))

    async def ListTeams(self, request: ListTeamsRequest, context: Context) -> ListTeamsResponse:
        def find(accounts: AccountTable) -> ListTeamsResponse:
            found = accounts.teams()
            if request.HasField("team"):
                one = accounts.team(request.team) or accounts.team_of_name(request.team)
                found = [one] if one else []
            return ListTeamsResponse(teams=[summary_of_team(accounts, team.team_id) for team in found])

        return await self._query(find)

    async def CreateToken(self, request: CreateTokenRequest, context: Context) -> CreateTokenResponse:
        check_texts(request)
        text = new_secret_text(TOKEN_PREFIX)
        (fact,) = await self._writer.write_for(
            request.origin,
            lambda accounts, actor, now_ms: decide_teams.create_token(accounts, actor, request, text, now_ms),
        )
        token = fact.token.token
        summary = await self._query(lambda accounts: token_summary(accounts, token))
        return CreateTokenResponse(token=summary, text=text.text)

    async def RevokeToken(self, request: RevokeTokenRequest, context: Context) -> RevokeTokenResponse:
        check_texts(request)
        await self._writer.write_for(
            request.origin,
            lambda accounts, actor, now_ms: decide_teams.revoke_token(accounts, actor, request.token_id),
        )
        return RevokeTokenResponse()

    async def ListTokens(self, request: ListTokensRequest, context: Context) -> ListTokensResponse:
        def find(accounts: AccountTable) -> ListTokensResponse:
            team_ids = request.team_ids or [team.team_id for team in accounts.teams()]
            tokens = [token_summary(accounts, token) for token in accounts.tokens(team_ids)]
            order = {team_id: index for index, team_id in enumerate(team_ids)}
            return ListTokensResponse(tokens=sorted(tokens, key=lambda token: (order[token.team_id], token.name)))

        return await self._query(find)

    async def ListChanges(self, request: ListChangesRequest, context: Context) -> ListChangesResponse:
        now_ms = self._clock.now_ms()

        def find(accounts: AccountTable) -> ListChangesResponse:
            found = accounts.changes(now_ms)
            return ListChangesResponse(
                changes=[each for each in found if not request.team_ids or each.team_id in request.team_ids]
            )

        return await self._query(find)

    async def DecideChange(self, request: DecideChangeRequest, context: Context) -> DecideChangeResponse:
        check_texts(request)
        link = new_secret_text(LINK_PREFIX)
        facts = await self._writer.write_for(
            request.origin,
            lambda accounts, actor, now_ms: decide_teams.decide_change(accounts, actor, request, link, now_ms),
        )
        if not facts[0].HasField("link"):
            return DecideChangeResponse()
        return DecideChangeResponse(link_token=link.text, link_expires_ms=facts[0].link.expires_ms)

    async def ErasePerson(self, request: ErasePersonRequest, context: Context) -> ErasePersonResponse:
        check_texts(request)
        return await self._erasures.erase(request)

    async def _query(self, question: Callable[[AccountTable], Result]) -> Result:
        return await self._follower.query(question, self._committed)
