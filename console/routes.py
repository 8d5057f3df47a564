"""Every route of the console, with the access that each of its methods needs.

A page is added here; a route or a method that is not declared is refused, and a test asks each with wrong accounts.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from console.account.log_in import LinkPage, LogInPage, LogOutPage
from console.account.pages import AccountPage, PasswordPage, SecondFactorPage, SessionsPage
from console.account.provider import RETURN_PATH, BackChannelPage, ProviderLogInPage, ProviderReturnPage
from console.apps.pages import AppPage, AppSettingsPage, AppsPage, EndOldSecretPage, NewAppPage, PausePage, SecretPage
from console.apps.phone import WORKER_PATH, PhonePage, PhoneWorker
from console.apps.refusals import RefusedRequestsPage
from console.audit.pages import AuditFile, AuditPage
from console.calls import accesses_of_calls
from console.devices.export import PersonFile
from console.devices.pages import DeadAddressesPage, DevicePage, DevicesPage, ErasuresPage, PushDevicesPage
from console.devices.why import WhyFormPage, WhyPage
from console.overview.pages import OverviewPage
from console.overview.streams import LiveOverview, LivePush, LivePushes
from console.people.changes import TeamChangesPage, UserChangesPage
from console.people.teams import (
    NewTeamPage,
    RevokeTokenPage,
    TeamAppsPage,
    TeamMembersPage,
    TeamPage,
    TeamSettingsPage,
    TeamsPage,
    TokensPage,
)
from console.people.users import NewUserPage, UserPage, UsersPage
from console.pushes.pages import CancelPushPage, FailuresPage, PushesPage, PushPage, SpeedPage
from console.send.draft_pages import ApprovePage, DraftPage, DraftsPage, RejectPage, WithdrawPage
from console.send.for_test_devices import SendToTestDevicesPage, TestDevicesPage
from console.send.pages import ChooseAppPage, ComposePage, SendPage, SentPage, SizePage, TypedPage
from console.send.saved_audiences import FormAudiencePage, SavedAudiencesPage
from console.send.values_page import ValuesPage
from console.shell.access import (
    ENROLMENT,
    LOGGED_IN,
    OWN_ACCOUNT,
    PROGRAM,
    PUBLIC,
    Access,
    of_app,
    of_installation,
    of_team,
)
from console.shell.middleware import Accesses
from console.shell.page import Page
from console.statistics.pages import StatisticsFile, StatisticsPage
from console.tasks.pages import CancelTaskPage, TasksPage
from console.webhooks.pages import TeamWebhooksPage, WebhooksPage
from services.domain.permissions import Action

_MANAGE_USERS = of_installation(Action.MANAGE_USERS)
_MANAGE_TEAMS = of_installation(Action.MANAGE_TEAMS)
STATIC_PATH = "/static/{name}"


@dataclass(frozen=True)
class Route:
    """A page with the access that GET and POST need; None: the page has no such method."""

    page: type[Page]
    get: Access | None = None
    post: Access | None = None

    @property
    def accesses(self) -> Mapping[str, Access]:
        return {method: access for method, access in (("GET", self.get), ("POST", self.post)) if access is not None}


ROUTES: Mapping[str, Route] = {
    "/": Route(OverviewPage, LOGGED_IN),
    "/live": Route(LiveOverview, LOGGED_IN),
    "/log-in": Route(LogInPage, PUBLIC, PUBLIC),
    "/log-out": Route(LogOutPage, post=PUBLIC),
    "/log-in/provider": Route(ProviderLogInPage, PUBLIC),
    RETURN_PATH: Route(ProviderReturnPage, PUBLIC),
    "/log-out/provider": Route(BackChannelPage, post=PROGRAM),
    "/link": Route(LinkPage, PUBLIC, PUBLIC),
    "/account": Route(AccountPage, OWN_ACCOUNT, OWN_ACCOUNT),
    "/account/password": Route(PasswordPage, OWN_ACCOUNT, OWN_ACCOUNT),
    "/account/second-factor": Route(SecondFactorPage, ENROLMENT, ENROLMENT),
    "/account/sessions": Route(SessionsPage, post=OWN_ACCOUNT),
    "/apps": Route(AppsPage, LOGGED_IN),
    "/apps/new": Route(
        NewAppPage, of_installation(Action.MANAGE_INSTALLATION), of_installation(Action.MANAGE_INSTALLATION)
    ),
    "/apps/{appkey}": Route(AppPage, of_app(Action.VIEW)),
    "/apps/{appkey}/phone": Route(PhonePage, of_app(Action.SEND)),
    WORKER_PATH: Route(PhoneWorker, of_app(Action.SEND)),
    "/apps/{appkey}/pause": Route(PausePage, post=of_app(Action.PAUSE)),
    "/apps/{appkey}/settings": Route(AppSettingsPage, of_app(Action.CHANGE_APP), of_app(Action.CHANGE_APP)),
    "/apps/{appkey}/secret/end": Route(EndOldSecretPage, post=of_app(Action.CHANGE_APP)),
    "/apps/{appkey}/secret": Route(SecretPage, of_app(Action.CHANGE_APP), of_app(Action.CHANGE_APP)),
    "/apps/{appkey}/refused": Route(RefusedRequestsPage, of_app(Action.VIEW)),
    "/apps/{appkey}/webhooks": Route(WebhooksPage, of_app(Action.CHANGE_APP), of_app(Action.CHANGE_APP)),
    "/send": Route(ChooseAppPage, LOGGED_IN),
    "/apps/{appkey}/send": Route(ComposePage, of_app(Action.SEND), of_app(Action.SEND)),
    "/apps/{appkey}/send/typed": Route(TypedPage, post=of_app(Action.SEND)),
    "/apps/{appkey}/send/audience": Route(FormAudiencePage, post=of_app(Action.SEND)),
    "/apps/{appkey}/audiences": Route(SavedAudiencesPage, of_app(Action.SEND), of_app(Action.SEND)),
    "/apps/{appkey}/send/size": Route(SizePage, post=of_app(Action.SEND)),
    "/apps/{appkey}/send/values": Route(ValuesPage, post=of_app(Action.SEND)),
    "/apps/{appkey}/send/now": Route(SendPage, post=of_app(Action.SEND)),
    "/apps/{appkey}/send/test": Route(SendToTestDevicesPage, post=of_app(Action.SEND)),
    "/apps/{appkey}/test-devices": Route(TestDevicesPage, of_app(Action.SEND), of_app(Action.SEND)),
    "/apps/{appkey}/sent/{msgid}": Route(SentPage, of_app(Action.VIEW)),
    "/drafts": Route(DraftsPage, LOGGED_IN),
    "/drafts/{team_id}/{draft_id}": Route(DraftPage, of_team(Action.VIEW)),
    "/drafts/{team_id}/{draft_id}/approval": Route(ApprovePage, post=of_team(Action.APPROVE)),
    "/drafts/{team_id}/{draft_id}/rejection": Route(RejectPage, post=of_team(Action.APPROVE)),
    "/drafts/{team_id}/{draft_id}/withdrawal": Route(WithdrawPage, post=of_team(Action.SEND)),
    "/pushes": Route(PushesPage, LOGGED_IN),
    "/pushes/live": Route(LivePushes, LOGGED_IN),
    "/apps/{appkey}/pushes/{msgid}": Route(PushPage, of_app(Action.VIEW)),
    "/apps/{appkey}/pushes/{msgid}/live": Route(LivePush, of_app(Action.VIEW)),
    "/apps/{appkey}/pushes/{msgid}/speed": Route(SpeedPage, of_app(Action.VIEW)),
    "/apps/{appkey}/pushes/{msgid}/failures": Route(FailuresPage, of_app(Action.VIEW)),
    "/apps/{appkey}/pushes/{msgid}/devices": Route(PushDevicesPage, of_app(Action.VIEW_DEVICES)),
    "/apps/{appkey}/pushes/{msgid}/cancel": Route(CancelPushPage, post=of_app(Action.SEND)),
    "/tasks": Route(TasksPage, LOGGED_IN),
    "/apps/{appkey}/tasks/{task_key}/cancel": Route(CancelTaskPage, post=of_app(Action.SEND)),
    "/devices": Route(DevicesPage, LOGGED_IN),
    "/apps/{appkey}/device": Route(DevicePage, of_app(Action.VIEW_DEVICES)),
    "/apps/{appkey}/person": Route(PersonFile, of_app(Action.EXPORT_PERSON)),
    "/apps/{appkey}/erasures": Route(ErasuresPage, of_app(Action.EXPORT_PERSON), of_app(Action.ERASE_PERSON)),
    "/apps/{appkey}/addresses": Route(DeadAddressesPage, of_app(Action.VIEW_DEVICES)),
    "/why": Route(WhyFormPage, LOGGED_IN),
    "/apps/{appkey}/why": Route(WhyPage, of_app(Action.VIEW_DEVICES)),
    "/statistics": Route(StatisticsPage, LOGGED_IN),
    "/statistics.csv": Route(StatisticsFile, LOGGED_IN),
    "/audit": Route(AuditPage, LOGGED_IN),
    "/audit.csv": Route(AuditFile, LOGGED_IN),
    "/users": Route(UsersPage, _MANAGE_USERS),
    "/users/new": Route(NewUserPage, _MANAGE_USERS, _MANAGE_USERS),
    "/users/changes": Route(UserChangesPage, post=_MANAGE_USERS),
    "/users/{user_id}": Route(UserPage, _MANAGE_USERS, _MANAGE_USERS),
    "/teams": Route(TeamsPage, LOGGED_IN),
    "/teams/new": Route(NewTeamPage, _MANAGE_TEAMS, _MANAGE_TEAMS),
    "/teams/{team_id}": Route(TeamPage, of_team(Action.VIEW)),
    "/teams/{team_id}/webhooks": Route(TeamWebhooksPage, of_team(Action.CHANGE_APP), of_team(Action.CHANGE_APP)),
    "/teams/{team_id}/settings": Route(TeamSettingsPage, post=of_team(Action.MANAGE_TEAM)),
    "/teams/{team_id}/changes": Route(TeamChangesPage, post=of_team(Action.MANAGE_TEAM)),
    "/teams/{team_id}/members": Route(TeamMembersPage, post=of_team(Action.MANAGE_TEAM)),
    "/teams/{team_id}/apps": Route(TeamAppsPage, post=_MANAGE_TEAMS),
    "/teams/{team_id}/tokens": Route(TokensPage, post=of_team(Action.MANAGE_TOKENS)),
    "/teams/{team_id}/tokens/{token_id}/revoke": Route(RevokeTokenPage, post=of_team(Action.MANAGE_TOKENS)),
}


def accesses() -> Accesses:
    """Return what each path and method needs, for the class `AccessControl`."""
    pages = {path: route.accesses for path, route in ROUTES.items()}
    return {STATIC_PATH: {"GET": PUBLIC}, **pages, **accesses_of_calls()}
