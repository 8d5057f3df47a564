"""LogInService: passwords, one-time codes and one-time links, checked for front ends."""

from protos.accounts.v1.accounts_pb2 import AccountFact, LinkCreated, LinkPurpose, LogInFact, User
from protos.accounts.v1.service_pb2 import (
    ChangePasswordRequest,
    ChangePasswordResponse,
    CheckLinkRequest,
    CheckLinkResponse,
    EndSessionRequest,
    EndSessionResponse,
    EndSubjectSessionsRequest,
    EndSubjectSessionsResponse,
    InviteFirstAdministratorRequest,
    InviteFirstAdministratorResponse,
    LogInRequest,
    LogInResponse,
    LogInResult,
    LogInWithSubjectRequest,
    LogInWithSubjectResponse,
    NoteDataReadRequest,
    NoteDataReadResponse,
    NoteTokenUsesRequest,
    NoteTokenUsesResponse,
    SetTotpRequest,
    SetTotpResponse,
    StartTotpRequest,
    StartTotpResponse,
    UseLinkRequest,
    UseLinkResponse,
    UserSummary,
)
from protos.accounts.v1.service_pb2_grpc import LogInServiceServicer
from protos.runtime.v1.log_pb2 import Origin
from services.accounts import decide
from services.accounts.fact_writer import FactWriter
from services.accounts.log_ins import one_time_codes
from services.accounts.log_ins.decide import (
    LogInAttempt,
    decide_end_of_sessions,
    decide_log_in,
    decide_log_in_with_subject,
    decide_token_use,
)
from services.accounts.log_ins.limits import BrowserTokens, LogInLimits, Source
from services.accounts.log_ins.passwords import Passwords, check_new_password
from services.accounts.store import AccountTable
from services.accounts.summaries import summary_of_user, user_summary
from services.domain.apps import AppDirectory
from services.domain.attempt_buckets import site_of
from services.domain.master_key import Keys
from services.domain.permissions import Actor
from services.domain.secret_texts import LINK_PREFIX, new_id, new_recovery_code, new_secret_text, recovery_hash
from services.domain.text import check_texts
from services.errors import BusyError, Code, InputError
from services.net.rpc.server import Context
from services.process.clock import Clock
from services.process.metrics import LOG_INS
from services.replica.follower import Follower

_RECOVERY_CODES = 10


class LogInServicer(LogInServiceServicer):
    """Answers log-in calls. Passwords are compared before the decision, which counts only if they have not changed."""

    def __init__(
        self,
        follower: Follower,
        committed: AccountTable,
        writer: FactWriter,
        passwords: Passwords,
        keys: Keys,
        apps: AppDirectory,
        clock: Clock,
    ) -> None:
        self._follower = follower
        self._committed = committed
        self._writer = writer
        self._passwords = passwords
        self._keys = keys
        self._clock = clock
        self._limits = LogInLimits()
        self._browsers = BrowserTokens(keys)
        self._apps = apps

    async def InviteFirstAdministrator(
        self, request: InviteFirstAdministratorRequest, context: Context
    ) -> InviteFirstAdministratorResponse:
        check_texts(request)
        user_id, link = new_id(), new_secret_text(LINK_PREFIX)

        def invite(accounts: AccountTable, now_ms: int) -> tuple[LinkCreated, list[AccountFact]]:
            facts = decide.invite_first_administrator(accounts, request.login, user_id, link, now_ms)
            return facts[-1].link, facts

        created = await self._writer.write(invite, request.origin)
        return InviteFirstAdministratorResponse(
            user=await self._summary(created.user_id), link_token=link.text, link_expires_ms=created.expires_ms
        )

    async def LogIn(self, request: LogInRequest, context: Context) -> LogInResponse:
        now_ms = self._clock.now_ms()
        if not request.browser_tokens and (wait_s := self._limits.refused_address(request.origin.address, now_ms)):
            return _limited(wait_s)
        user, source = await self._follower.query(self._source_of, request, now_ms)
        if wait_s := self._limits.take(source, now_ms):
            return _limited(wait_s)
        stored = user.password_hash if user else ""
        try:
            is_right = await self._passwords.is_right(request.password, stored, source.acquaintance)
        except BusyError:
            self._limits.give_back(source)
            raise
        attempt = self._attempt(user, is_right, request)
        is_code_checked = is_right and attempt.is_code_given and user is not None and bool(user.sealed_totp_secret)
        if is_code_checked and (wait_s := self._limits.take_code(source, now_ms)):
            return _limited(wait_s)
        result = await self._writer.write(lambda accounts, now_ms: decide_log_in(accounts, attempt), request.origin)
        if user is None or result != LogInResult.LOG_IN_RESULT_OK:
            return _counted(LogInResponse(result=result))
        self._limits.succeeded(source)
        token = self._browsers.token(user.user_id, user.session_epoch, source.browser_id, now_ms)
        return _counted(LogInResponse(result=result, user=await self._summary(user.user_id), browser_token=token))

    async def LogInWithSubject(self, request: LogInWithSubjectRequest, context: Context) -> LogInWithSubjectResponse:
        check_texts(request)
        known = await self._follower.query(self._committed.user_of_subject, request.subject)
        user_id = known.user_id if known else new_id()
        result = await self._writer.write(
            lambda accounts, now_ms: decide_log_in_with_subject(accounts, request, user_id, now_ms),
            _acting(request.origin, user_id),
        )
        if not request.is_renewal:
            _count(result)
        user = await self._follower.query(self._committed.user_of_subject, request.subject)
        if user is None or result != LogInResult.LOG_IN_RESULT_OK:
            return LogInWithSubjectResponse(result=result)
        return LogInWithSubjectResponse(result=result, user=await self._summary(user.user_id))

    async def EndSubjectSessions(
        self, request: EndSubjectSessionsRequest, context: Context
    ) -> EndSubjectSessionsResponse:
        check_texts(request)
        await self._writer.write(
            lambda accounts, now_ms: (None, decide_end_of_sessions(accounts, request.subject)), request.origin
        )
        return EndSubjectSessionsResponse()

    async def CheckLink(self, request: CheckLinkRequest, context: Context) -> CheckLinkResponse:
        def check(accounts: AccountTable) -> CheckLinkResponse:
            found = decide.valid_link(accounts, request.link_token, self._clock.now_ms())
            purpose = LinkPurpose.ValueType(found.link.purpose)
            return CheckLinkResponse(user=user_summary(accounts, found.user), purpose=purpose)

        return await self._follower.query(check, self._committed)

    async def UseLink(self, request: UseLinkRequest, context: Context) -> UseLinkResponse:
        now_ms = self._clock.now_ms()
        found = await self._follower.query(decide.valid_link, self._committed, request.link_token, now_ms)
        await self._check_new_password(request.new_password, found.user)
        new_hash = await self._passwords.hash(request.new_password)
        user_id = found.user.user_id
        await self._writer.write(
            lambda accounts, now_ms: (None, decide.use_link(accounts, request.link_token, new_hash, now_ms)),
            _acting(request.origin, user_id),
        )
        user = await self._summary(user_id)
        return UseLinkResponse(user=user, browser_token=self._new_browser_token(user))

    async def ChangePassword(self, request: ChangePasswordRequest, context: Context) -> ChangePasswordResponse:
        user = await self._acting_user(request.origin)
        if retry_after_s := self._limits.take_of_session(user.user_id, self._clock.now_ms()):
            return ChangePasswordResponse(retry_after_s=retry_after_s)
        if not await self._passwords.is_right(request.password, user.password_hash):
            return ChangePasswordResponse()
        await self._check_new_password(request.new_password, user)
        new_hash = await self._passwords.hash(request.new_password)
        await self._writer.write_for(
            request.origin,
            lambda accounts, actor, now_ms: decide.change_password(accounts, actor, user.password_hash, new_hash),
        )
        changed = await self._summary(user.user_id)
        return ChangePasswordResponse(changed=True, user=changed, browser_token=self._new_browser_token(changed))

    async def StartTotp(self, request: StartTotpRequest, context: Context) -> StartTotpResponse:
        user = await self._acting_user(request.origin)
        secret = one_time_codes.new_secret()
        return StartTotpResponse(secret=secret, otpauth_uri=one_time_codes.otpauth_uri(secret, user.login))

    async def SetTotp(self, request: SetTotpRequest, context: Context) -> SetTotpResponse:
        user = await self._acting_user(request.origin)
        decide.check_may_have_totp(user)
        one_time_codes.check_secret(request.secret)
        if retry_after_s := self._limits.take_of_session(user.user_id, self._clock.now_ms()):
            return SetTotpResponse(retry_after_s=retry_after_s)
        if not await self._passwords.is_right(request.password, user.password_hash):
            return SetTotpResponse(password_is_wrong=True)
        if not one_time_codes.matching_step(request.secret, request.code, self._clock.now_ms()):
            raise InputError(Code.WRONG_TOTP_CODE, at="code")
        codes = [new_recovery_code() for _ in range(_RECOVERY_CODES)]
        hashes = [recovery_hash(code) for code in codes]

        def set_totp(accounts: AccountTable, actor: Actor, now_ms: int) -> list[AccountFact]:
            # Sealed within the decision, so that no rotation of keys comes between sealing and writing.
            sealed = self._keys.seal(request.secret, decide.totp_context(user))
            return decide.set_totp(accounts, actor, user.password_hash, sealed, hashes)

        await self._writer.write_for(request.origin, set_totp)
        return SetTotpResponse(recovery_codes=codes, user=await self._summary(user.user_id))

    async def EndSession(self, request: EndSessionRequest, context: Context) -> EndSessionResponse:
        await self._writer.write_for(
            request.origin, lambda accounts, actor, now_ms: decide.end_session(accounts, actor, request, now_ms)
        )
        return EndSessionResponse()

    async def NoteTokenUses(self, request: NoteTokenUsesRequest, context: Context) -> NoteTokenUsesResponse:
        def noted(accounts: AccountTable, now_ms: int) -> tuple[None, list[LogInFact]]:
            uses = (decide_token_use(accounts, token_id, now_ms) for token_id in dict.fromkeys(request.token_ids))
            return None, [fact for facts in uses for fact in facts]

        await self._writer.write(noted, request.origin)
        return NoteTokenUsesResponse()

    async def NoteDataRead(self, request: NoteDataReadRequest, context: Context) -> NoteDataReadResponse:
        check_texts(request)
        await self._writer.write(lambda accounts, now_ms: (None, [LogInFact(data_read=request.read)]), request.origin)
        return NoteDataReadResponse()

    def _source_of(self, request: LogInRequest, now_ms: int) -> tuple[User | None, Source]:
        """Return the user with the login name, and where the attempt comes from; in the follower's thread."""
        accounts, address = self._committed, request.origin.address
        user = accounts.user_of_login(request.login)
        if user is None:
            return None, Source(request.login, address)
        browser_id = self._browsers.known(request.browser_tokens, user, now_ms)
        is_known = accounts.is_known_network(user, site_of(address), now_ms)
        return user, Source(request.login, address, user.user_id, browser_id, is_known)

    def _new_browser_token(self, user: UserSummary) -> str:
        return self._browsers.token(user.user_id, user.session_epoch, "", self._clock.now_ms())

    async def _check_new_password(self, password: str, user: User) -> None:
        """Check a new password. InputError: it is easy to guess, as by names of the user, teams and apps."""

        def names() -> list[str]:
            teams = [
                team
                for team in self._committed.teams()
                if any(member.user_id == user.user_id for member in team.members)
            ]
            appkeys = [appkey for team in teams for appkey in self._committed.apps_of(team.team_id)]
            apps = [app.name for appkey in appkeys if (app := self._apps.get(appkey))]
            return [user.login, user.display_name, *(team.name for team in teams), *apps]

        check_new_password(password, await self._follower.query(names))

    def _attempt(self, user: User | None, is_right: bool, request: LogInRequest) -> LogInAttempt:
        """Return the attempt. The code is compared also for a wrong password, where the result counts for nothing."""
        step, code = 0, request.code
        if user and user.sealed_totp_secret and code:
            secret = self._keys.open(user.sealed_totp_secret, decide.totp_context(user))
            step = one_time_codes.matching_step(secret, code, self._clock.now_ms())
        return LogInAttempt(user, is_right, bool(code), step, recovery_hash(code), request.only_administrators)

    async def _acting_user(self, origin: Origin) -> User:
        def find(accounts: AccountTable) -> User:
            return decide.acting_user(accounts, decide.actor_of(accounts, origin, self._clock.now_ms()))

        return await self._follower.query(find, self._committed)

    async def _summary(self, user_id: str) -> UserSummary:
        return await self._follower.query(summary_of_user, self._committed, user_id)


def _limited(retry_after_s: int) -> LogInResponse:
    return _counted(LogInResponse(result=LogInResult.LOG_IN_RESULT_LIMITED, retry_after_s=retry_after_s))


def _counted(answer: LogInResponse) -> LogInResponse:
    _count(answer.result)
    return answer


def _count(result: "LogInResult.ValueType") -> None:
    LOG_INS.labels(LogInResult.Name(result).removeprefix("LOG_IN_RESULT_").lower()).inc()


def _acting(origin: Origin, user_id: str) -> Origin:
    """Return the origin with the user as its actor."""
    acting = Origin()
    acting.CopyFrom(origin)
    acting.actor = f"user/{user_id}"
    return acting
