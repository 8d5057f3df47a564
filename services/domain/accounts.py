"""The account directory, a projection of the topic `accounts` in memory, and the actors that it knows.

Each request of an account is checked against it without a call. A disabled user, an ended session, a revoked token or a
changed role takes effect as soon as its record is read.
"""

import asyncio
from collections.abc import Iterable
from typing import TypeVar, assert_never

from protos.accounts.v1.accounts_pb2 import AccountFact, AppGiven, SessionEnded, Team, Token, User
from protos.runtime.v1.log_pb2 import Origin
from services.domain.permissions import Actor, Role
from services.domain.secret_texts import TOKEN_PREFIX, id_of, matches
from services.domain.topics import ACCOUNTS, decode
from services.log.port import Log, Partition, Record
from services.replica.dead_letters import UNUSABLE, leave_out
from services.replica.epochs import Epochs
from services.replica.health import Followed
from services.replica.partition_reader import PartitionReader
from services.replica.positions import AppliedPositions

# Accounts as actors: a user with a role in each team, and an API token with a role in its team.


def user_actor(user: User, teams: Iterable[Team]) -> Actor:
    """Return the user as an actor with the roles of these teams."""
    roles = {
        team.team_id: Role(member.role) for team in teams for member in team.members if member.user_id == user.user_id
    }
    return Actor(f"user/{user.user_id}", is_administrator=user.administrator, is_disabled=user.disabled, roles=roles)


def names_account(origin: Origin) -> bool:
    """Return whether the origin of a record is an account of the console, and so under the approval rules of teams."""
    return origin.interface == "console" and origin.actor.startswith(("user/", "token/"))


def token_actor(token: Token, now_ms: int) -> Actor:
    """Return the API token as an actor; one that has expired may do nothing."""
    is_expired = bool(token.expires_ms) and now_ms >= token.expires_ms
    return Actor(f"token/{token.token_id}", is_disabled=is_expired, roles={token.team_id: Role(token.role)})


OUTDATED = "the account directory may not be up to date, because the log does not answer; try again"
"""Error text for an API token that the directory does not know, where a refresh failed: the log may hold the token."""

_PARTITION = Partition(ACCOUNTS.name, 0)

Versioned = TypeVar("Versioned", User, Team, AppGiven)


class AccountDirectory:
    """Service that provides users without their secrets, teams with their apps, and API tokens."""

    name = "accounts directory"

    def __init__(self, log: Log) -> None:
        self._reader = PartitionReader(self.name, log, _PARTITION, self._apply)
        self._epochs = Epochs()
        self._users: dict[str, User] = {}
        self._teams: dict[str, Team] = {}
        self._apps: dict[str, AppGiven] = {}
        self._apps_of: dict[str, frozenset[str]] = {}
        self._tokens: dict[str, Token] = {}
        self._revoked: set[str] = set()
        self._ended_sessions: dict[bytes, int] = {}
        self._with_second_factor: set[str] = set()

    @property
    def applied(self) -> AppliedPositions:
        """The positions of the topic that the directory has applied."""
        return self._reader.applied

    @property
    def followed(self) -> Followed:
        """The positions and the partition by which the process's health check judges the directory."""
        return self._reader.followed

    async def refresh(self) -> bool:
        """Return True once all records now in the log are applied, False if they are not after two seconds."""
        return await self._reader.refresh()

    async def run(self, ready: asyncio.Event) -> None:
        await self._reader.run(ready)

    def session(self, user_id: str, epoch: int) -> User | None:
        """Return the user of a session that began under this epoch; None if it has ended."""
        user = self._users.get(user_id)
        return user if user is not None and not user.disabled and user.session_epoch == epoch else None

    def is_session_ended(self, session_hash: bytes) -> bool:
        """Return whether a user has logged out of this session."""
        return session_hash in self._ended_sessions

    def has_second_factor(self, user_id: str) -> bool:
        """Return whether the service asks the user for one-time codes."""
        return user_id in self._with_second_factor

    def token(self, text: str, now_ms: int) -> Token | None:
        """Return the API token with this text; None if it is unknown, revoked or expired."""
        token = self._tokens.get(id_of(text, TOKEN_PREFIX) or "")
        if token is None or token.token_id in self._revoked or not matches(text, token.token_hash):
            return None
        return token if not token.expires_ms or now_ms < token.expires_ms else None

    def token_of(self, actor: str) -> Token:
        """Return the API token of an actor token/ID, which `token` has returned before."""
        return self._tokens[actor.removeprefix("token/")]

    def may_token_go_on(self, actor: str, now_ms: int) -> bool:
        """Return whether the API token of an actor token/ID is neither revoked nor expired."""
        token = self._tokens.get(actor.removeprefix("token/"))
        if token is None or token.token_id in self._revoked:
            return False
        return not token.expires_ms or now_ms < token.expires_ms

    def actor_of_user(self, user_id: str) -> Actor:
        """Return the user as an actor with the present roles; an unknown user may do nothing."""
        user = self._users.get(user_id)
        return user_actor(user, self._teams.values()) if user else Actor(f"user/{user_id}", is_disabled=True)

    def name_of(self, actor: str) -> str:
        """Return an actor's name for people: the name of user/ID or token/ID if it is known, else `actor` itself."""
        kind, _, known_id = actor.partition("/")
        if kind == "user" and (user := self._users.get(known_id)) is not None:
            return user.display_name or user.login
        if kind == "token" and (token := self._tokens.get(known_id)) is not None:
            return token.name
        return actor

    def authors(self, actor: str) -> set[str]:
        """Return the account user/ID or token/ID, and for an API token, also a revoked one, the user who made it."""
        token = self._tokens.get(actor.removeprefix("token/")) if actor.startswith("token/") else None
        return {actor, *([f"user/{token.created_by}"] if token and token.created_by else [])}

    def user(self, user_id: str) -> User | None:
        """Return a user without secrets."""
        return self._users.get(user_id)

    def team(self, team_id: str) -> Team | None:
        return self._teams.get(team_id)

    def teams(self) -> list[Team]:
        """Return every team, by name."""
        return sorted(self._teams.values(), key=lambda team: team.name.casefold())

    def team_of(self, appkey: str) -> str:
        """Return the id of the team that the app belongs to, or ""."""
        given = self._apps.get(appkey)
        return given.team_id if given else ""

    def apps_of(self, team_id: str) -> frozenset[str]:
        """Return the apps that belong to a team."""
        return self._apps_of.get(team_id, frozenset())

    def _apply(self, record: Record) -> None:
        try:
            fact = decode(record)
            if self._epochs.admits(record, fact):
                self._apply_fact(fact)
        except UNUSABLE as error:
            leave_out(self.name, record, error)

    def _apply_fact(self, fact: AccountFact) -> None:
        match fact.WhichOneof("fact"):
            case "user":
                self._apply_user(fact.user.user)
            case "team":
                _keep_newest(self._teams, fact.team.team.team_id, fact.team.team)
            case "app":
                self._give_app(fact.app)
            case "token":
                self._tokens.setdefault(fact.token.token.token_id, fact.token.token)
            case "token_revoked":
                self._revoked.add(fact.token_revoked.token_id)
            case "session_ended":
                self._apply_session_end(fact.session_ended, fact.meta.time_ms)
            case "link" | "change_proposed" | "change_decided" | "erasure_sent" | None:
                pass
            case unexpected:
                assert_never(unexpected)

    def _give_app(self, given: AppGiven) -> None:
        former = self.team_of(given.appkey)
        if _keep_newest(self._apps, given.appkey, given):
            self._apps_of[former] = self.apps_of(former) - {given.appkey}
            self._apps_of[given.team_id] = self.apps_of(given.team_id) | {given.appkey}

    def _apply_user(self, user: User) -> None:
        has_second_factor = bool(user.sealed_totp_secret)
        user.ClearField("password_hash")
        user.ClearField("sealed_totp_secret")
        user.ClearField("recovery_code_hashes")
        if _keep_newest(self._users, user.user_id, user):
            (self._with_second_factor.add if has_second_factor else self._with_second_factor.discard)(user.user_id)

    def _apply_session_end(self, ended: SessionEnded, now_ms: int) -> None:
        """Keep the end of a session until it would have ended by itself."""
        over = [known for known, until_ms in self._ended_sessions.items() if until_ms <= now_ms]
        for known in over:
            del self._ended_sessions[known]
        self._ended_sessions[ended.session_hash] = ended.until_ms


def _keep_newest(known: dict[str, Versioned], key: str, record: Versioned) -> bool:
    """Replace what is known unless the record is a repeated one; return whether it was replaced."""
    is_newer = key not in known or record.version > known[key].version
    if is_newer:
        known[key] = record
    return is_newer
