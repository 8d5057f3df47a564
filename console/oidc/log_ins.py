"""Log-ins with the authorization code flow, PKCE (RFC 7636) and `iss` (RFC 9207), and renewal of their sessions."""

import asyncio
import base64
import hashlib
import hmac
import secrets
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

import msgspec

from console.oidc.provider import (
    Claims,
    InvalidTokenError,
    Provider,
    ProviderAwayError,
    ProviderRefusalError,
    StaleLogInError,
    TokenCheck,
    UnknownKeyError,
)
from console.oidc.settings import OidcSettings, groups_in
from console.shell.backend import RoleStubs
from console.shell.sessions import PendingProviderLogIn, ProviderSession
from protos.accounts.v1.accounts_pb2 import Subject, User
from protos.accounts.v1.service_pb2 import LogInResult, LogInWithSubjectRequest
from protos.runtime.v1.log_pb2 import Origin
from services.domain.accounts import AccountDirectory
from services.errors import CarillonError
from services.process.clock import Clock
from services.process.logs import logger

LOG_IN_MS = 10 * 60_000
"""How long a person may take at the provider."""

MAX_REFRESH_TOKEN = 1900
MAX_TOKENS = 2100
"""Characters of the tokens that a session keeps: a cookie has room for no more."""

_MAX_NAME = 64
_AWAY = frozenset(
    {"server_error", "temporarily_unavailable", "unauthorized_client", "invalid_request", "invalid_scope"}
)
"""Error codes in the provider's redirect that do not mean a refusal of the person."""


@dataclass(frozen=True, slots=True)
class ProviderIdentity:
    """A person whom the provider has authenticated: what accounts is told, and what the session keeps."""

    request: LogInWithSubjectRequest
    session: ProviderSession

    def asked(self, origin: Origin, *, is_renewal: bool = False) -> LogInWithSubjectRequest:
        """Return the call that logs the person in."""
        self.request.origin.CopyFrom(origin)
        self.request.is_renewal = is_renewal
        return self.request


class ProviderLogIns:
    """Begins log-ins with the provider, and turns its answers into the identities of people."""

    def __init__(self, settings: OidcSettings, provider: Provider, clock: Clock, redirect_uri: str) -> None:
        self.provider = provider
        self._scopes = settings.oidc_scopes
        self._prompt = settings.oidc_prompt
        self._groups_claim = settings.oidc_groups_claim
        self._mapping = settings.oidc_group_mapping()
        self._clock = clock
        self._redirect_uri = redirect_uri

    async def begin(self, next_path: str) -> tuple[str, PendingProviderLogIn]:
        """Return the address of the provider to go to, and what the session keeps until the person is back."""
        pending = PendingProviderLogIn(
            state=secrets.token_urlsafe(24),
            nonce=secrets.token_urlsafe(24),
            verifier=secrets.token_urlsafe(48),
            next=next_path,
            until_ms=self._clock.now_ms() + LOG_IN_MS,
        )
        challenge = base64.urlsafe_b64encode(hashlib.sha256(pending.verifier.encode()).digest()).decode().rstrip("=")
        fields = {
            "response_type": "code",
            "client_id": self.provider.client_id,
            "redirect_uri": self._redirect_uri,
            "scope": self._scopes,
            "state": pending.state,
            "nonce": pending.nonce,
            "code_challenge": challenge,
            "code_challenge_method": "S256",
        }
        if self._prompt:
            fields["prompt"] = self._prompt
        return _with_query((await self.provider.metadata()).authorization_endpoint, fields), pending

    async def finish(self, pending: PendingProviderLogIn | None, answer: Mapping[str, str]) -> ProviderIdentity:
        """Return the logged-in user's identity, from the fields with which the provider sent the browser back.

        StaleLogInError, ProviderRefusalError, InvalidTokenError and ProviderAwayError say why there is none.
        """
        is_known = pending is not None and hmac.compare_digest(pending.state.encode(), answer.get("state", "").encode())
        if pending is None or not is_known or self._clock.now_ms() >= pending.until_ms:
            raise StaleLogInError("the answer belongs to no log-in of this browser")
        await self._check_answer(answer)
        tokens = await self.provider.exchange(answer["code"], pending.verifier, self._redirect_uri)
        claims = await self._checked(lambda check: check.id_token(tokens.id_token, nonce=pending.nonce))
        if not tokens.refresh_token:
            logger.warning("the provider gave no refresh token: the session goes through the log-in again soon")
        elif len(tokens.refresh_token) > MAX_REFRESH_TOKEN:
            logger.warning("the provider's refresh token is too long for a cookie: it is not kept")
        claims = await self._completed(claims, tokens.access_token, is_renewal=False)
        return self._identity(claims, self._session(secrets.token_urlsafe(12), tokens.refresh_token, tokens.id_token))

    async def renew(self, session: ProviderSession, subject: str) -> ProviderIdentity:
        """Ask the provider whether the session may go on. ProviderRefusalError and InvalidTokenError: it may not."""
        if not session.refresh_token:
            raise ProviderRefusalError("there is no refresh token")
        tokens = await self.provider.renew(session.refresh_token)
        claims: Claims = {"sub": subject}
        if tokens.id_token:
            claims = await self._checked(lambda check: check.renewed_id_token(tokens.id_token, subject=subject))
        claims = await self._completed(claims, tokens.access_token, is_renewal=True)
        refresh_token, id_token = tokens.refresh_token or session.refresh_token, tokens.id_token or session.id_token
        return self._identity(claims, self._session(session.key, refresh_token, id_token))

    async def logged_out_subject(self, log_out_token: str) -> Subject:
        """Return the user that a log-out token names. InvalidTokenError: it is no log-out token of the provider."""
        claims = await self._checked(lambda check: check.log_out_token(log_out_token))
        return Subject(issuer=self.provider.issuer, subject=claims["sub"])

    async def log_out_url(self, session: ProviderSession, return_uri: str) -> str:
        """Return the URL at which the person logs out of the provider too; "" where it has no such address."""
        endpoint = (await self.provider.metadata()).end_session_endpoint
        if not endpoint:
            return ""
        fields = {"client_id": self.provider.client_id, "post_logout_redirect_uri": return_uri}
        if session.id_token:
            fields["id_token_hint"] = session.id_token
        return _with_query(endpoint, fields)

    async def _check_answer(self, answer: Mapping[str, str]) -> None:
        is_named = (await self.provider.metadata()).authorization_response_iss_parameter_supported
        if answer.get("iss", "" if is_named else self.provider.issuer) != self.provider.issuer:
            raise InvalidTokenError("the answer is of another provider (iss)")
        if "error" in answer:
            error = answer["error"][:64]
            raise (ProviderAwayError if error in _AWAY else ProviderRefusalError)(f"the provider refuses: {error!r}")
        if not answer.get("code"):
            raise InvalidTokenError("the answer has no code")

    async def _checked(self, check: Callable[[TokenCheck], Claims]) -> Claims:
        """Return the claims of a token; if its key is unknown, the keys are fetched again first."""
        try:
            return check(await self._token_check())
        except UnknownKeyError:
            return check(await self._token_check(is_key_unknown=True))

    async def _token_check(self, *, is_key_unknown: bool = False) -> TokenCheck:
        keys = await self.provider.keys(is_one_unknown=is_key_unknown)
        return TokenCheck(self.provider.issuer, self.provider.client_id, keys, self._clock.now_ms() // 1000)

    async def _completed(self, claims: Claims, access_token: str, *, is_renewal: bool) -> Claims:
        """Return the claims with those of the UserInfo endpoint, if the ID token lacks one that is needed."""
        needed = {self._groups_claim} if self._mapping else set()
        if not is_renewal:
            needed |= {"preferred_username", "name", *({"email"} & set(self._scopes.split()))}
        if needed <= claims.keys():
            return claims
        return {**await self.provider.user_info(access_token, claims["sub"]), **claims}

    def _identity(self, claims: Claims, session: ProviderSession) -> ProviderIdentity:
        subject = Subject(issuer=self.provider.issuer, subject=claims["sub"])
        request = LogInWithSubjectRequest(
            subject=subject,
            login=_name(claims, "preferred_username", "email") or claims["sub"][:_MAX_NAME],
            display_name=_name(claims, "name", "preferred_username"),
            mail_address=verified_mail_address(claims),
        )
        if self._mapping:
            request.roles.CopyFrom(self._mapping.roles_of(groups_in(claims.get(self._groups_claim))))
        return ProviderIdentity(request, session)

    def _session(self, key: str, refresh_token: str, id_token: str) -> ProviderSession:
        kept = refresh_token if len(refresh_token) <= MAX_REFRESH_TOKEN else ""
        hint = id_token if len(kept) + len(id_token) <= MAX_TOKENS else ""
        return ProviderSession(key, kept, hint, self._clock.now_ms())


def _name(claims: Claims, *names: str) -> str:
    """Return the printable part of the first of these claims that has one, at most _MAX_NAME characters."""
    texts = [text for name in names if isinstance(text := claims.get(name), str)]
    printable = ("".join(sign for sign in text if sign.isprintable()).strip() for text in texts)
    return next((text[:_MAX_NAME] for text in printable if text), "")


def verified_mail_address(claims: Claims) -> str:
    """Return the address that the provider has verified, or ""."""
    address = claims.get("email")
    return address if isinstance(address, str) and claims.get("email_verified") is True else ""


def _with_query(url: str, fields: Mapping[str, Any]) -> str:
    return f"{url}{'&' if '?' in url else '?'}{urlencode(fields)}"


# Sessions of people who have logged in with the provider, which is asked every few minutes whether they may go on.

RETRY_MS = 15_000
"""How long the provider is not asked again after it did not answer."""

MAX_SESSIONS = 10_000


@dataclass
class _Known:
    """The newest state of a session that this process has; `session` is None once it has ended."""

    session: ProviderSession | None
    asking: asyncio.Lock = field(default_factory=asyncio.Lock)


class ProviderSessions:
    """Asks the provider, for each session once in `oidc_check_s`, by its refresh token, and updates the roles.

    A provider may accept each refresh token once. So requests of a session that come together wait for one renewal, and
    one that comes later with an older cookie gets the newest tokens, from memory.
    """

    def __init__(
        self,
        settings: OidcSettings,
        log_ins: ProviderLogIns,
        roles: RoleStubs,
        accounts: AccountDirectory,
        clock: Clock,
    ) -> None:
        self._check_ms = 1000 * settings.oidc_check_s
        self._outage_ms = 1000 * settings.oidc_outage_s
        self._log_ins = log_ins
        self._roles = roles
        self._accounts = accounts
        self._clock = clock
        self._known: OrderedDict[str, _Known] = OrderedDict()
        self._retry_ms = 0

    async def checked(self, session: ProviderSession, user: User, origin: Origin) -> ProviderSession | None:
        """Return the session, renewed with the provider if that was due; None if it has ended."""
        if user.subject.issuer != self._log_ins.provider.issuer:
            return None
        known = self._newest(session)
        if known.session is None or not self._is_due(known.session):
            return known.session
        async with known.asking:
            if known.session is not None and self._is_due(known.session):
                known.session = await self._renewed(known.session, user, origin)
        return known.session

    def is_due(self, session: ProviderSession) -> bool:
        """Return whether the next request of the session asks the provider, or finds that the session has ended."""
        newest = self._newest(session).session
        return newest is None or self._is_due(newest)

    def _newest(self, session: ProviderSession) -> _Known:
        known = self._known.setdefault(session.key, _Known(session))
        self._known.move_to_end(session.key)
        if len(self._known) > MAX_SESSIONS:
            self._known.popitem(last=False)
        if known.session is not None and known.session.checked_ms < session.checked_ms:
            known.session = session
        return known

    def _is_due(self, session: ProviderSession) -> bool:
        now_ms = self._clock.now_ms()
        is_outage_over = now_ms >= session.checked_ms + self._check_ms + self._outage_ms
        return now_ms >= session.checked_ms + self._check_ms and (now_ms >= self._retry_ms or is_outage_over)

    async def _renewed(self, session: ProviderSession, user: User, origin: Origin) -> ProviderSession | None:
        renewed = session
        try:
            identity = await self._log_ins.renew(session, user.subject.subject)
            # The check is complete once accounts has the roles.
            renewed = msgspec.structs.replace(identity.session, checked_ms=session.checked_ms)
            answer = await self._roles.log_ins.LogInWithSubject(identity.asked(origin, is_renewal=True))
        except (ProviderRefusalError, InvalidTokenError) as error:
            logger.info("a session is over, as the provider says", user=user.login, error=str(error))
            return None
        except CarillonError as error:
            return self._of_outage(renewed, user, error)
        if answer.result != LogInResult.LOG_IN_RESULT_OK:
            return None
        await self._accounts.refresh()
        return identity.session

    def _of_outage(self, session: ProviderSession, user: User, error: Exception) -> ProviderSession | None:
        now_ms = self._clock.now_ms()
        self._retry_ms = now_ms + RETRY_MS
        is_over = now_ms >= session.checked_ms + self._check_ms + self._outage_ms
        logger.warning("the provider cannot be asked about a session", user=user.login, ended=is_over, error=str(error))
        return None if is_over else session
