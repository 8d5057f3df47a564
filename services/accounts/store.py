"""The tables of users, teams, one-time links and API tokens in SQLite; `drafts/` has the tables of drafts."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from protos.accounts.v1.accounts_pb2 import (
    AccountFact,
    AppGiven,
    ChangeProposed,
    LinkCreated,
    PendingChange,
    Subject,
    Team,
    TeamChanged,
    Token,
    User,
)
from services.accounts.drafts.store import ADMITTED_DDL, DRAFTS_DDL, AdmittedTable, DraftTable
from services.accounts.state import LogInState

DDL = (
    """
CREATE TABLE users (
  user_id TEXT PRIMARY KEY, login_key TEXT NOT NULL UNIQUE, subject_key TEXT UNIQUE, version INTEGER NOT NULL,
  user BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE teams (
  team_id TEXT PRIMARY KEY, name_key TEXT NOT NULL UNIQUE, version INTEGER NOT NULL, team BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE team_apps (
  appkey TEXT PRIMARY KEY, team_id TEXT NOT NULL, version INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE links (
  link_id TEXT PRIMARY KEY, user_id TEXT NOT NULL, link BLOB NOT NULL, ended INTEGER NOT NULL) WITHOUT ROWID;
CREATE INDEX links_of_users ON links (user_id) WHERE ended = 0;
CREATE TABLE tokens (
  token_id TEXT PRIMARY KEY, team_id TEXT NOT NULL, token BLOB NOT NULL, ended INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE log_ins (user_id TEXT PRIMARY KEY, last_ms INTEGER NOT NULL, totp_step INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE log_in_networks (
  user_id TEXT NOT NULL, site TEXT NOT NULL, last_ms INTEGER NOT NULL, session_epoch INTEGER NOT NULL,
  PRIMARY KEY (user_id, site)) WITHOUT ROWID;
CREATE TABLE used_codes (code_hash BLOB PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE changes (
  change_id TEXT PRIMARY KEY, expires_ms INTEGER NOT NULL, ended INTEGER NOT NULL, change BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE token_uses (token_id TEXT PRIMARY KEY, last_ms INTEGER NOT NULL) WITHOUT ROWID;
"""
    + DRAFTS_DDL
    + ADMITTED_DDL
)


_ENDED, _CONFIRMED = 1, 2
"""States of a change that waits no more, in the column `ended`: a confirmed erasure is left to do."""

MAX_NETWORKS = 10
NETWORK_MS = 90 * 24 * 3_600_000
"""How long a network is a known one of a user after the last log-in from there."""


class OpenLink(NamedTuple):
    """A one-time link that is neither used nor replaced; it may have expired."""

    link: LinkCreated
    user: User


def key_of(name: str) -> str:
    """Return the form in which login names and team names are unique."""
    return name.strip().casefold()


class AccountTable(DraftTable, AdmittedTable):
    """Accounts over one connection; used in the thread of the follower alone."""

    def put_user(self, user: User) -> None:
        self._rows.execute(
            "INSERT INTO users VALUES (?, ?, ?, ?, ?) ON CONFLICT (user_id) DO UPDATE SET"
            " login_key = excluded.login_key, subject_key = excluded.subject_key, version = excluded.version,"
            " user = excluded.user WHERE excluded.version > users.version",
            (user.user_id, key_of(user.login), _subject_key(user), user.version, _bytes(user)),
        )

    def put_team(self, team: Team) -> None:
        self._rows.execute(
            "INSERT INTO teams VALUES (?, ?, ?, ?) ON CONFLICT (team_id) DO UPDATE SET name_key = excluded.name_key,"
            " version = excluded.version, team = excluded.team WHERE excluded.version > teams.version",
            (team.team_id, key_of(team.name), team.version, _bytes(team)),
        )

    def forget_in_teams(self, left: Callable[[AccountFact], AccountFact | None]) -> None:
        """Replace each team by what `left` returns for a fact with it; None: it stays as it is."""
        for team in self.teams():
            changed = left(AccountFact(team=TeamChanged(team=team))) if team.test_devices else None
            if changed is not None:
                self._rows.execute(
                    "UPDATE teams SET team = ? WHERE team_id = ?", (_bytes(changed.team.team), team.team_id)
                )

    def give_app(self, given: AppGiven) -> None:
        self._rows.execute(
            "INSERT INTO team_apps VALUES (?, ?, ?) ON CONFLICT (appkey) DO UPDATE SET team_id = excluded.team_id,"
            " version = excluded.version WHERE excluded.version > team_apps.version",
            (given.appkey, given.team_id, given.version),
        )

    def add_link(self, link: LinkCreated) -> None:
        if self._rows.execute("SELECT 1 FROM links WHERE link_id = ?", (link.link_id,)).fetchone():
            return
        self._rows.execute("UPDATE links SET ended = 1 WHERE user_id = ? AND ended = 0", (link.user_id,))
        self._rows.execute("INSERT INTO links VALUES (?, ?, ?, 0)", (link.link_id, link.user_id, _bytes(link)))

    def end_link(self, link_id: str) -> None:
        self._rows.execute("UPDATE links SET ended = 1 WHERE link_id = ?", (link_id,))

    def add_token(self, token: Token) -> None:
        row = (token.token_id, token.team_id, _bytes(token))
        self._rows.execute("INSERT OR IGNORE INTO tokens VALUES (?, ?, ?, 0)", row)

    def end_token(self, token_id: str) -> None:
        self._rows.execute("UPDATE tokens SET ended = 1 WHERE token_id = ?", (token_id,))

    def add_change(self, change: PendingChange, time_ms: int) -> None:
        self._rows.execute("DELETE FROM changes WHERE expires_ms <= ? AND ended != ?", (time_ms, _CONFIRMED))
        row = (change.change_id, change.expires_ms, change.SerializeToString(deterministic=True))
        self._rows.execute("INSERT OR IGNORE INTO changes VALUES (?, ?, 0, ?)", row)

    def end_change(self, change_id: str, *, confirmed: bool) -> None:
        query = "SELECT change FROM changes WHERE change_id = ? AND ended = 0"
        for (row,) in self._rows.execute(query, (change_id,)).fetchall():
            is_left_to_do = confirmed and PendingChange.FromString(row).HasField("erase")
            state = _CONFIRMED if is_left_to_do else _ENDED
            self._rows.execute("UPDATE changes SET ended = ? WHERE change_id = ?", (state, change_id))

    def note_erasure_sent(self, change_id: str) -> None:
        self._rows.execute("UPDATE changes SET ended = ? WHERE change_id = ?", (_ENDED, change_id))

    def confirmed_erasures(self, limit: int) -> list[PendingChange]:
        """Return some of the erasures that are confirmed and not noted as carried out."""
        query = "SELECT change FROM changes WHERE ended = ? ORDER BY change_id LIMIT ?"
        return [PendingChange.FromString(row) for (row,) in self._rows.execute(query, (_CONFIRMED, limit))]

    def forget_in_changes(self, until_ms: int, left: Callable[[AccountFact], AccountFact | None]) -> None:
        """Replace each erasure that was asked for by then by what `left` returns for its fact; None: it stays."""
        for (row,) in self._rows.execute("SELECT change FROM changes").fetchall():
            change = PendingChange.FromString(row)
            if not change.HasField("erase") or change.created_ms > until_ms:
                continue
            changed = left(AccountFact(change_proposed=ChangeProposed(change=change)))
            if changed is not None:
                content = changed.change_proposed.change.SerializeToString(deterministic=True)
                self._rows.execute("UPDATE changes SET change = ? WHERE change_id = ?", (content, change.change_id))

    def changes(self, now_ms: int) -> list[PendingChange]:
        """Return the changes that wait for a confirmation now, by the time at which they were proposed."""
        rows = self._rows.execute("SELECT change FROM changes WHERE ended = 0 AND expires_ms > ?", (now_ms,))
        found = [PendingChange.FromString(row) for (row,) in rows]
        return sorted(found, key=lambda change: (change.created_ms, change.change_id))

    def knows_change(self, change_id: str) -> bool:
        """Return whether a change with this id is stored, waiting or ended.

        Expired changes are deleted when one is added.
        """
        return self._rows.execute("SELECT 1 FROM changes WHERE change_id = ?", (change_id,)).fetchone() is not None

    def note_log_in(self, user_id: str, time_ms: int, totp_step: int) -> None:
        self._rows.execute(
            "INSERT INTO log_ins VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET"
            " last_ms = max(last_ms, excluded.last_ms), totp_step = max(totp_step, excluded.totp_step)",
            (user_id, time_ms, totp_step),
        )

    def note_network(self, user_id: str, site: str, time_ms: int, session_epoch: int) -> None:
        self._rows.execute(
            "INSERT INTO log_in_networks VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET last_ms = excluded.last_ms,"
            " session_epoch = excluded.session_epoch WHERE excluded.last_ms >= log_in_networks.last_ms",
            (user_id, site, time_ms, session_epoch),
        )
        self._rows.execute(
            "DELETE FROM log_in_networks WHERE user_id = ? AND site NOT IN (SELECT site FROM log_in_networks"
            " WHERE user_id = ? ORDER BY last_ms DESC, site LIMIT ?)",
            (user_id, user_id, MAX_NETWORKS),
        )

    def use_recovery_code(self, code_hash: bytes) -> None:
        self._rows.execute("INSERT OR IGNORE INTO used_codes VALUES (?)", (code_hash,))

    def note_token_use(self, token_id: str, time_ms: int) -> None:
        self._rows.execute(
            "INSERT INTO token_uses VALUES (?, ?) ON CONFLICT DO UPDATE SET last_ms = max(last_ms, excluded.last_ms)",
            (token_id, time_ms),
        )

    def user(self, user_id: str) -> User | None:
        return self._user("user_id", user_id)

    def user_of_login(self, login: str) -> User | None:
        return self._user("login_key", key_of(login))

    def user_of_subject(self, subject: Subject) -> User | None:
        return self._user("subject_key", _key_of_subject(subject))

    def users(self) -> list[User]:
        """Return every user, by login name."""
        return [User.FromString(row) for (row,) in self._rows.execute("SELECT user FROM users ORDER BY login_key")]

    def team(self, team_id: str) -> Team | None:
        row = self._rows.execute("SELECT team FROM teams WHERE team_id = ?", (team_id,)).fetchone()
        return Team.FromString(row[0]) if row else None

    def team_of_name(self, name: str) -> Team | None:
        row = self._rows.execute("SELECT team FROM teams WHERE name_key = ?", (key_of(name),)).fetchone()
        return Team.FromString(row[0]) if row else None

    def teams(self) -> list[Team]:
        """Return every team, by name."""
        return [Team.FromString(row) for (row,) in self._rows.execute("SELECT team FROM teams ORDER BY name_key")]

    def given_app(self, appkey: str) -> AppGiven:
        """Return the latest record of the app's team; an empty one if it was never given to a team."""
        row = self._rows.execute("SELECT * FROM team_apps WHERE appkey = ?", (appkey,)).fetchone()
        return AppGiven(appkey=row[0], team_id=row[1], version=row[2]) if row else AppGiven(appkey=appkey)

    def apps_of(self, team_id: str) -> list[str]:
        query = "SELECT appkey FROM team_apps WHERE team_id = ? ORDER BY appkey"
        return [appkey for (appkey,) in self._rows.execute(query, (team_id,))]

    def open_link(self, link_id: str) -> OpenLink | None:
        query = "SELECT link, user FROM links JOIN users USING (user_id) WHERE link_id = ? AND ended = 0"
        row = self._rows.execute(query, (link_id,)).fetchone()
        return OpenLink(LinkCreated.FromString(row[0]), User.FromString(row[1])) if row else None

    def token(self, token_id: str) -> Token | None:
        """Return an API token that is not revoked; it may have expired."""
        row = self._rows.execute("SELECT token FROM tokens WHERE token_id = ? AND ended = 0", (token_id,)).fetchone()
        return Token.FromString(row[0]) if row else None

    def maker_of_token(self, token_id: str) -> str:
        """Return the id of the user who made an API token, also one that is revoked; "" if an operator made it."""
        row = self._rows.execute("SELECT token FROM tokens WHERE token_id = ?", (token_id,)).fetchone()
        return Token.FromString(row[0]).created_by if row else ""

    def tokens(self, team_ids: Iterable[str]) -> list[Token]:
        """Return the API tokens of these teams that are not revoked."""
        query = "SELECT token FROM tokens WHERE team_id = ? AND ended = 0 ORDER BY token_id"
        return [Token.FromString(row) for team_id in team_ids for (row,) in self._rows.execute(query, (team_id,))]

    def log_in_state(self, user_id: str) -> LogInState:
        row = self._rows.execute("SELECT last_ms, totp_step FROM log_ins WHERE user_id = ?", (user_id,)).fetchone()
        return LogInState(*row) if row else LogInState()

    def is_known_network(self, user: User, site: str, now_ms: int) -> bool:
        """Return whether the user has logged in from the network within NETWORK_MS, under the present session epoch."""
        query = "SELECT last_ms, session_epoch FROM log_in_networks WHERE user_id = ? AND site = ?"
        row = self._rows.execute(query, (user.user_id, site)).fetchone()
        return bool(row) and row[1] == user.session_epoch and now_ms < row[0] + NETWORK_MS

    def is_used(self, code_hash: bytes) -> bool:
        return self._rows.execute("SELECT 1 FROM used_codes WHERE code_hash = ?", (code_hash,)).fetchone() is not None

    def last_use_ms(self, token_id: str) -> int:
        """Return the time in ms since 1970 at which the API token was last used, to the hour; 0 if it was not."""
        row = self._rows.execute("SELECT last_ms FROM token_uses WHERE token_id = ?", (token_id,)).fetchone()
        return row[0] if row else 0

    def close(self) -> None:
        self._rows.close()

    def _user(self, column: str, value: str) -> User | None:
        row = self._rows.execute(f"SELECT user FROM users WHERE {column} = ?", (value,)).fetchone()  # noqa: S608
        return User.FromString(row[0]) if row else None


def _subject_key(user: User) -> str | None:
    return _key_of_subject(user.subject) if user.HasField("subject") else None


def _key_of_subject(subject: Subject) -> str:
    return f"{subject.issuer}\n{subject.subject}"


def _bytes(message: User | Team | LinkCreated | Token) -> bytes:
    return message.SerializeToString(deterministic=True)
