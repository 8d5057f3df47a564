"""Sessions of people who have logged in with the provider, which is asked every few minutes whether they may go on."""

import asyncio
from collections import OrderedDict
from dataclasses import dataclass, field

import msgspec

from edge.console.access_control.sessions import ProviderSession
from edge.console.oidc.errors import InvalidTokenError, ProviderRefusalError
from edge.console.oidc.log_ins import ProviderLogIns
from edge.console.oidc.settings import OidcSettings
from edge.console.role_stubs import RoleStubs
from protos.accounts.v1.accounts_pb2 import User
from protos.accounts.v1.service_pb2 import LogInResult
from protos.runtime.v1.log_pb2 import Origin
from services.domain.accounts.directory import AccountDirectory
from services.runtime.errors import CarillonError
from services.runtime.process.clock import Clock
from services.runtime.process.logs import logger

RETRY_MS = 15_000
"""How long the provider is not asked again after it did not answer."""

MAX_SESSIONS = 10_000


@dataclass
class _Known:
    """The newest state of a session in this process. `session` None: it has ended."""

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
        """Return the session as it goes on; None if it has ended."""
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
