"""Settings of the console's log-in by OpenID Connect, and what a user's groups give here."""

import re
import ssl
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

import msgspec

from protos.accounts.v1.accounts_pb2 import MemberRole
from protos.accounts.v1.service_pb2 import GroupRoles, TeamRole
from services.domain.settings import PREFIX, Settings, SettingsError
from services.domain.text import without_byte_order_mark

# Grants of a user's groups at the provider: roles in teams, and the rights of an administrator.
#
# The file is a JSON object by group:
#
# {"push-admins": {"administrator": true},
#  "news-desk": {"teams": {"News": "sender", "Sport": "viewer"}}}


class Grant(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one group gives. `teams`: the role in each team, by the team's name or id."""

    administrator: bool = False
    teams: dict[str, Literal["viewer", "sender", "approver", "administrator"]] = {}


@dataclass(frozen=True, slots=True)
class GroupMapping:
    """The grants of groups, by the group's name at the provider."""

    grants: Mapping[str, Grant]

    @classmethod
    def parse(cls, content: bytes) -> "GroupMapping":
        """Read the file. ValueError: it is no such object, or no group gives a grant."""
        grants = msgspec.json.decode(content, type=dict[str, Grant])
        if not any(grant.administrator or grant.teams for grant in grants.values()):
            raise ValueError("no group gives a role in a team or administrator, so nobody could log in")
        return cls(grants)

    def roles_of(self, groups: Collection[str]) -> GroupRoles:
        """Return the grants of these groups together; of several roles in a team the highest."""
        grants = [self.grants[group] for group in groups if group in self.grants]
        teams: dict[str, int] = {}
        for grant in grants:
            for team, name in grant.teams.items():
                teams[team] = max(MemberRole.Value(f"MEMBER_ROLE_{name.upper()}"), teams.get(team, 0))
        return GroupRoles(
            administrator=any(grant.administrator for grant in grants),
            teams=[TeamRole(team=team, role=MemberRole.ValueType(role)) for team, role in sorted(teams.items())],
        )


def groups_in(claim: object) -> list[str]:
    """Return the groups that a claim names: a list of texts, or one text; any other value names no group."""
    if isinstance(claim, str):
        return [claim]
    return [group for group in claim if isinstance(group, str)] if isinstance(claim, list) else []


_LOOPBACK = ("127.0.0.1", "::1", "localhost")
_OIDC_SETTINGS = ("oidc_client_id", "oidc_client_secret_file", "oidc_name", "oidc_roles_file", "oidc_authority")


class OidcSettings(Settings, frozen=True, kw_only=True):
    """The OpenID Connect provider with which people log in; there is none without `oidc_issuer`.

    `oidc_client_secret_file`: holds the secret as its only line; a public client has none.
    `oidc_name`: the provider's name on the log-in page; by default its host.
    `oidc_roles_file`: says what groups give; without it roles are given by hand.
    `oidc_passwords`: who may log in with a password all the same.
    `oidc_check_s`: how long after it was asked the provider is asked again whether a session may go on.
    `oidc_outage_s`: how long sessions go on while the provider does not answer.
    """

    oidc_issuer: str | None = None
    oidc_client_id: str | None = None
    oidc_client_secret_file: str | None = None
    oidc_name: str | None = None
    oidc_scopes: str = "openid profile offline_access"
    oidc_prompt: str | None = None
    oidc_groups_claim: str = "groups"
    oidc_roles_file: str | None = None
    oidc_passwords: Literal["everyone", "administrators"] = "everyone"
    oidc_check_s: Annotated[int, msgspec.Meta(ge=10, le=285)] = 240
    oidc_outage_s: Annotated[int, msgspec.Meta(ge=0, le=86_400)] = 3600
    oidc_authority: str | None = None

    def check(self) -> None:
        super().check()
        if self.oidc_issuer is None:
            for name in _OIDC_SETTINGS:
                if getattr(self, name) is not None:
                    raise SettingsError(f"{PREFIX}{name.upper()} is set, but {PREFIX}OIDC_ISSUER is not")
            return
        if not is_allowed_url(self.oidc_issuer) or urlsplit(self.oidc_issuer).query:
            raise SettingsError(
                f"{PREFIX}OIDC_ISSUER is {self.oidc_issuer!r}; use the issuer of the provider, such as https://login.example.org"
            )
        if not self.oidc_client_id:
            raise SettingsError(f"{PREFIX}OIDC_CLIENT_ID is needed with {PREFIX}OIDC_ISSUER")
        if "openid" not in self.oidc_scopes.split():
            raise SettingsError(f"{PREFIX}OIDC_SCOPES is {self.oidc_scopes!r}; the scope openid must be among them")
        self.oidc_tls()
        self.oidc_client_secret()
        self.oidc_group_mapping()

    @property
    def has_provider(self) -> bool:
        return self.oidc_issuer is not None

    @property
    def oidc_display_name(self) -> str:
        """The provider's name for people; empty if there is none."""
        return self.oidc_name or urlsplit(self.oidc_issuer or "").hostname or ""

    @property
    def only_administrators_have_passwords(self) -> bool:
        return self.has_provider and self.oidc_passwords == "administrators"

    def oidc_client_secret(self) -> str:
        """Return the client's secret; empty for a public client. SettingsError: the file cannot be used."""
        if self.oidc_client_secret_file is None:
            return ""
        name = f"{PREFIX}OIDC_CLIENT_SECRET_FILE is {self.oidc_client_secret_file!r}"
        try:
            secret = Path(self.oidc_client_secret_file).read_text(encoding="utf-8-sig").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise SettingsError(f"{name}, which cannot be read: {error}") from None
        if not secret or "\n" in secret:
            raise SettingsError(f"{name}, which must hold the secret as its only line")
        return secret

    def oidc_tls(self) -> ssl.SSLContext:
        """Return the TLS context for calls of the provider: it trusts the host's authorities, or those of the file.

        SettingsError: the file cannot be used.
        """
        try:
            return ssl.create_default_context(cafile=self.oidc_authority)
        except (OSError, ValueError) as error:
            raise SettingsError(
                f"{PREFIX}OIDC_AUTHORITY is {self.oidc_authority!r}, which cannot be used: {error}"
            ) from None

    def oidc_group_mapping(self) -> GroupMapping | None:
        """Return the roles that the provider's groups give; None where roles are given by hand.

        SettingsError: the file cannot be used.
        """
        if self.oidc_roles_file is None:
            return None
        try:
            return GroupMapping.parse(without_byte_order_mark(Path(self.oidc_roles_file).read_bytes()))
        except (OSError, ValueError) as error:
            raise SettingsError(
                f"{PREFIX}OIDC_ROLES_FILE is {self.oidc_roles_file!r}, which cannot be used: {error}"
            ) from None


def is_allowed_url(text: str) -> bool:
    """Return whether the provider may be asked at this address: over HTTPS, or on this host."""
    try:
        url = urlsplit(text)
        is_loopback = url.hostname in _LOOPBACK
    except ValueError:
        return False
    is_plain = re.fullmatch("[!-~]+", text) and url.username is None and url.password is None and not url.fragment
    return bool(is_plain) and bool(url.hostname) and (url.scheme == "https" or (url.scheme == "http" and is_loopback))
