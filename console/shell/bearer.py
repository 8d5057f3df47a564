"""API tokens, in the header Authorization: authenticates the calls of `/console/v1` and limits their rate."""

import falcon
from falcon.asgi import Request

from console.shell.access import Requester
from protos.accounts.v1.accounts_pb2 import Token
from protos.accounts.v1.service_pb2 import NoteTokenUsesRequest
from protos.accounts.v1.service_pb2_grpc import LogInServiceStub
from protos.runtime.v1.log_pb2 import Origin
from services.domain.accounts import OUTDATED, AccountDirectory, token_actor
from services.domain.attempt_buckets import AttemptBuckets
from services.domain.secret_texts import TOKEN_PREFIX, id_of
from services.errors import CarillonError, TooManyRequestsError, UnavailableError
from services.net.sockets import network
from services.process.clock import Clock
from services.process.logs import logger
from services.replica.peers import Peers

API_PREFIX = "/console/v1"
BURST_S = 5
"""Burst of a token: after a pause it may make the calls of this many seconds at once."""

_FAILURES = 20
_FAILURE_MS = 5_000
_USE_MS = 3_600_000
_SCHEME = "bearer "


def is_call(path: str) -> bool:
    """Return whether a path is one of the interface for programs, and not a page."""
    return path == API_PREFIX or path.startswith(f"{API_PREFIX}/")


class BearerAuthenticator:
    """Authenticates calls. A token may make `calls_per_s`; an address may send 20 wrong tokens, then one in 5 s."""

    def __init__(self, accounts: AccountDirectory, peers: Peers, clock: Clock, calls_per_s: int) -> None:
        self._accounts = accounts
        self._log_ins = LogInServiceStub(peers.all("accounts")[0])
        self._clock = clock
        self._calls = AttemptBuckets(BURST_S * calls_per_s, 1000, calls_per_s)
        self._failures = AttemptBuckets(_FAILURES, _FAILURE_MS)
        self._noted_ms: dict[str, int] = {}

    async def requester(self, request: Request, origin: Origin) -> Requester:
        """Return the account of the token. HTTP 401: there is no valid one; TooManyRequestsError: over a limit.

        UnavailableError: the token is unknown here, and the log, which may hold it, does not answer.
        """
        now_ms = self._clock.now_ms()
        token = await self._token(request.get_header("Authorization") or "", network(origin.address), now_ms)
        _take(self._calls, token.token_id, now_ms, "this API token has made too many calls")
        actor = token_actor(token, now_ms)
        origin.actor = actor.name
        await self._note_use(token.token_id, origin, now_ms)
        return Requester(actor=actor, origin=origin, accounts=self._accounts)

    async def _token(self, header: str, peer: str, now_ms: int) -> Token:
        text = header[len(_SCHEME) :].strip() if header.lower().startswith(_SCHEME) else ""
        if not text:
            raise _unauthorized("send an API token of a team in the header Authorization: Bearer TOKEN")
        token = self._accounts.token(text, now_ms)
        if token is None:
            _take(self._failures, peer, now_ms, "too many wrong API tokens came from this address")
            if id_of(text, TOKEN_PREFIX):
                is_current = await self._accounts.refresh()  # it may have been made a moment ago
                token = self._accounts.token(text, now_ms)
                if token is None and not is_current:
                    raise UnavailableError(OUTDATED)
        if token is None:
            raise _unauthorized("this API token is unknown, revoked or expired; make another one on the team's page")
        return token

    async def _note_use(self, token_id: str, origin: Origin, now_ms: int) -> None:
        """Note once an hour that the token was used. A call does not fail because that is not possible at present."""
        if now_ms - self._noted_ms.get(token_id, -_USE_MS) < _USE_MS:
            return
        self._noted_ms[token_id] = now_ms
        try:
            await self._log_ins.NoteTokenUses(NoteTokenUsesRequest(token_ids=[token_id], origin=origin))
        except CarillonError as error:
            del self._noted_ms[token_id]
            logger.warning("the use of an API token could not be noted", token_id=token_id, error=str(error))


def _take(buckets: AttemptBuckets, key: str, now_ms: int, words: str) -> None:
    if wait_ms := buckets.wait_ms(key, now_ms):
        seconds = -(-wait_ms // 1000)
        raise TooManyRequestsError(f"{words}; try again in {seconds} s", seconds)
    buckets.take(key, now_ms)


def _unauthorized(words: str) -> falcon.HTTPUnauthorized:
    return falcon.HTTPUnauthorized(description=words, challenges=['Bearer realm="carillon"'])
