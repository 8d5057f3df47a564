"""The three teams of the demo, their people, apps and rules, and how they are set up at the console."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from demo.person import ConsoleSession
from demo.population import Interests
from demo.service import DemoService
from testkit.apns.keys import KEY_ID, TEAM_ID, pem

_LINK = re.compile(r"/link\?token=\S+")


@dataclass(frozen=True)
class PersonOfTeam:
    """A user with a role in the team. `zone` and `locale` are what the person chooses on the page of the account."""

    login: str
    name: str
    role: str
    zone: str = "Asia/Shanghai"
    locale: str = "en"


@dataclass(frozen=True)
class AppOfTeam:
    """An app; `share` is its part of all devices, `key` its name in the demo."""

    key: str
    name: str
    package: str
    share: float
    interests: Interests
    is_ios: bool = False
    keeps_acknowledgements: bool = False


@dataclass(frozen=True)
class TeamOfDemo:
    """A team. `above_devices`: pushes to more devices need an approval; "": however many there are."""

    name: str
    people: tuple[PersonOfTeam, ...]
    apps: tuple[AppOfTeam, ...]
    token: str
    needs_approval: bool = False
    above_devices: str = ""


_SHOPPING = Interests(
    {"deals": 0.52, "new-in": 0.37, "sneakers": 0.21, "home": 0.26, "beauty": 0.24, "cart": 0.12, "vip": 0.06},
    tags=(1, 2, 3),
)
_READING = Interests(
    {"breaking": 0.71, "sport": 0.38, "business": 0.29, "culture": 0.18, "weather": 0.44, "puzzles": 0.15},
    tags=(10, 20),
)
_WORK = Interests({"on-call": 0.18, "drivers": 0.46, "warehouse": 0.32, "line-4": 0.08}, tags=(100, 101))

SHOP = TeamOfDemo(
    "Bluebird Shop",
    (
        PersonOfTeam("lin.wei", "Lin Wei 林薇", "administrator", locale="zh"),
        PersonOfTeam("sofia.meyer", "Sofia Meyer", "sender", "Europe/Berlin"),
        PersonOfTeam("wang.lei", "Wang Lei 王磊", "approver"),
    ),
    (
        AppOfTeam("shop", "Bluebird", "com.example.bluebird", 0.42, _SHOPPING, keeps_acknowledgements=True),
        AppOfTeam("shop_ios", "Bluebird iOS", "com.example.bluebird.ios", 0.1, _SHOPPING, is_ios=True),
    ),
    "order-service",
    needs_approval=True,
    above_devices="5000",
)
NEWS = TeamOfDemo(
    "Morning News 晨报",
    (
        PersonOfTeam("zhang.min", "Zhang Min 张敏", "administrator", locale="zh"),
        PersonOfTeam("tom.baker", "Tom Baker", "sender", "Europe/London"),
        PersonOfTeam("chen.jing", "Chen Jing 陈静", "approver"),
    ),
    (
        AppOfTeam("news", "晨报", "com.example.chenbao", 0.4, _READING),
        AppOfTeam("news_ios", "晨报 iOS", "com.example.chenbao.ios", 0.06, _READING, is_ios=True),
    ),
    "newsroom",
)
OPERATIONS = TeamOfDemo(
    "Field Operations",
    (
        PersonOfTeam("ivan.petrov", "Ivan Petrov", "administrator", "Europe/Berlin"),
        PersonOfTeam("amara.okafor", "Amara Okafor", "sender", "Europe/London"),
        PersonOfTeam("audit.office", "Audit office", "viewer"),
    ),
    (AppOfTeam("rounds", "Rounds", "com.example.rounds", 0.02, _WORK, keeps_acknowledgements=True),),
    "monitoring",
)
TEAMS = (SHOP, NEWS, OPERATIONS)
ADMINISTRATOR = "admin"


@dataclass
class Installed:
    """Keys and ids that the installation issued: appkeys and secrets by `AppOfTeam.key`, the rest by the team name."""

    appkeys: dict[str, str] = field(default_factory=dict)
    secrets: dict[str, str] = field(default_factory=dict)
    team_ids: dict[str, str] = field(default_factory=dict)
    tokens: dict[str, str] = field(default_factory=dict)

    def secrets_of(self, *apps: str) -> tuple[str, ...]:
        """Return the secret keys that sign a request of these apps."""
        return tuple(self.secrets[app] for app in apps)


def device_counts(total: int) -> Mapping[str, int]:
    """Return how many devices each app has."""
    return {app.key: max(1, round(total * app.share)) for team in TEAMS for app in team.apps}


async def set_up(service: DemoService, admin: ConsoleSession) -> Installed:
    """Create teams, users, apps and API tokens at the console, as the administrator and the invited people do."""
    installed = Installed()
    for team in TEAMS:
        await admin.open("/teams/new")
        path = await admin.submit("/teams/new", name=team.name)
        team_id = installed.team_ids[team.name] = path.rpartition("/")[2]
        for person in team.people:
            await _invite(service, admin, person, team_id)
        for app in team.apps:
            await _register(admin, app, team_id, installed)
        rules = {"broadcasts": "on"} if team.needs_approval else {}
        await admin.submit(f"{path}/settings", name=team.name, above_devices=team.above_devices, **rules)
        await admin.submit(f"{path}/tokens", token_name=team.token, token_role="sender", expires="90d")
        installed.tokens[team.name] = admin.shown_once()
    return installed


def set_app_settings(service: DemoService, installed: Installed) -> None:
    """Let some apps keep acknowledgements, and give the iOS apps a key, by the operator's commands."""
    key_file = service.clock_file.with_name("apns.p8")
    key_file.write_text(pem())
    for app in (app for team in TEAMS for app in team.apps):
        if app.keeps_acknowledgements:
            service.carillon("app", "set", installed.appkeys[app.key], "--ack-info", "on")
        if app.is_ios:
            given = ("--apns-key", str(key_file), "--apns-key-id", KEY_ID, "--apns-team", TEAM_ID)
            service.carillon("app", "set", installed.appkeys[app.key], *given)


async def _invite(service: DemoService, admin: ConsoleSession, person: PersonOfTeam, team_id: str) -> None:
    """Invite a person, who chooses a password and the settings of the account."""
    await admin.open("/users/new")
    fields = {"login": person.login, "display_name": person.name, "team_id": team_id, "role": person.role}
    await admin.submit("/users/new", **fields)
    link = _LINK.search(admin.shown_once())
    assert link is not None, "the page of a new user shows the link"
    invited = ConsoleSession(service.console_url, person.login)
    await invited.use_link(link[0])
    await invited.submit("/account", display_name=person.name, locale=person.locale, zone=person.zone)
    await invited.close()


async def _register(admin: ConsoleSession, app: AppOfTeam, team_id: str, installed: Installed) -> None:
    await admin.open("/apps/new")
    platform = "ios" if app.is_ios else "android"
    path = await admin.submit("/apps/new", name=app.name, platform=platform, package=app.package, team_id=team_id)
    installed.appkeys[app.key] = path.rpartition("/")[2]
    installed.secrets[app.key] = admin.shown_once()
