"""Checks of users, teams and drafts: no answer is lost, no change is overwritten, what was approved is sent."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence

from protos.accounts.v1.accounts_pb2 import AccountFact, Team, User
from protos.accounts.v1.drafts_pb2 import Draft, DraftFact, DraftStatus, GetDraftsRequest
from protos.accounts.v1.drafts_pb2_grpc import DraftsServiceStub
from protos.accounts.v1.service_pb2 import GetUsersRequest, ListTeamsRequest, ListTokensRequest
from protos.accounts.v1.service_pb2_grpc import AccountsServiceStub
from protos.scheduling.v1.scheduling_pb2 import CreateTask
from services.domain.topics import ACCOUNTS, DRAFTS, TASK_COMMANDS, decode
from services.errors import CarillonError
from services.log.port import NewRecord, Partition, Record
from services.replica.epochs import Epochs
from tests.simulation.backends.accounts.ledger import AccountsLedger
from tests.simulation.backends.accounts.people import STATUSES
from tests.simulation.kernel.installation import Installation


class AccountHistory:
    """The facts of users, teams and drafts in the order in which the log stored them, each once: those that are valid.

    `note` takes the place of the function that a Broker is given, which it calls. Later the log may lose some of them.
    """

    def __init__(self, note: Callable[[Partition, int, Sequence[NewRecord]], None]) -> None:
        self.facts: list[AccountFact] = []
        self.draft_facts: list[DraftFact] = []
        self.tasks: dict[str, CreateTask] = {}
        """The first command that creates each timed task, by its key."""
        self._known: set[bytes] = set()
        self._epochs = Epochs()
        self._note = note

    def note(self, partition: Partition, offset: int, new_records: Sequence[NewRecord]) -> None:
        self._note(partition, offset, new_records)
        if partition.topic in (ACCOUNTS.name, DRAFTS.name):
            for place, new_record in enumerate(new_records, offset):
                record = Record(*partition, place, new_record.key, new_record.value)
                fact = decode(record)
                is_valid = self._epochs.admits(record, fact) and fact.WhichOneof("fact")
                if is_valid and fact.meta.event_id not in self._known:
                    self._known.add(fact.meta.event_id)
                    (self.facts if partition.topic == ACCOUNTS.name else self.draft_facts).append(fact)
        elif partition.topic == TASK_COMMANDS.name:
            for place, new_record in enumerate(new_records, offset):
                command = decode(Record(*partition, place, new_record.key, new_record.value))
                if command.HasField("create"):
                    self.tasks.setdefault(command.task_key, command.create)

    def users(self) -> Mapping[str, Sequence[User]]:
        """Return the versions of each user by id."""
        versions: dict[str, list[User]] = defaultdict(list)
        for fact in self.facts:
            if fact.HasField("user"):
                versions[fact.user.user.user_id].append(fact.user.user)
        return versions

    def teams(self) -> Mapping[str, Sequence[Team]]:
        """Return the versions of each team by id."""
        versions: dict[str, list[Team]] = defaultdict(list)
        for fact in self.facts:
            if fact.HasField("team"):
                versions[fact.team.team.team_id].append(fact.team.team)
        return versions

    def apps(self) -> Mapping[str, str]:
        """Return the last team of each app."""
        return {fact.app.appkey: fact.app.team_id for fact in self.facts if fact.HasField("app")}

    def tokens(self) -> tuple[set[str], set[str]]:
        """Return the ids of the API tokens that were created, and of those that were revoked."""
        created = {fact.token.token.token_id for fact in self.facts if fact.HasField("token")}
        return created, {fact.token_revoked.token_id for fact in self.facts if fact.HasField("token_revoked")}

    def drafts(self) -> Mapping[str, Sequence[DraftFact]]:
        """Return the facts of each draft by id."""
        facts: dict[str, list[DraftFact]] = defaultdict(list)
        for fact in self.draft_facts:
            facts[fact.draft_id].append(fact)
        return facts


def undone_drafts(history: AccountHistory) -> list[str]:
    """Return the approved drafts that were not sent yet."""
    kinds = {draft_id: [fact.WhichOneof("fact") for fact in facts] for draft_id, facts in history.drafts().items()}
    return [f"draft {key} was approved and is not sent" for key, found in kinds.items() if _is_unsent(found)]


def _is_unsent(kinds: Sequence[str | None]) -> bool:
    return "approved" in kinds and "sent" not in kinds


async def final_accounts(installation: Installation, history: AccountHistory) -> list[str]:
    """Return how the answers differ from the log, once the role has carried out everything."""
    (channel,) = installation.client_peers().all("accounts")
    accounts = AccountsServiceStub(channel)
    users = {user_id: versions[-1] for user_id, versions in history.users().items()}
    teams = {team_id: versions[-1] for team_id, versions in history.teams().items()}
    created, revoked = history.tokens()
    drafts = history.drafts()
    try:
        read_users = (await accounts.GetUsers(GetUsersRequest(user_ids=sorted(users)))).users
        read_teams = (await accounts.ListTeams(ListTeamsRequest())).teams
        read_tokens = (await accounts.ListTokens(ListTokensRequest())).tokens
        read_drafts = (await DraftsServiceStub(channel).GetDrafts(GetDraftsRequest(draft_ids=sorted(drafts)))).drafts
    except CarillonError as error:
        return [f"state: accounts does not answer in the end: {error!r}"]
    names = {user.user_id: user.display_name for user in read_users}
    statuses = {draft.draft.draft_id: draft.status for draft in read_drafts}
    return [
        *_differences("users", names, {user_id: user.display_name for user_id, user in users.items()}),
        *_differences("teams", {each.team.team_id: each.team for each in read_teams}, teams),
        *_differences("apps", {key: each.team.team_id for each in read_teams for key in each.appkeys}, history.apps()),
        *_differences(
            "tokens", {token.token_id: True for token in read_tokens}, dict.fromkeys(created - revoked, True)
        ),
        *_differences("drafts", statuses, {key: _status(facts, statuses.get(key)) for key, facts in drafts.items()}),
    ]


def _differences(of: str, read: Mapping[str, object], wanted: Mapping[str, object]) -> Iterator[str]:
    for key in sorted(read.keys() | wanted.keys()):
        if read.get(key) != wanted.get(key):
            yield f"state: {of}: {key} is {read.get(key)}, and should be {wanted.get(key)}"


def _status(facts: Sequence[DraftFact], read: int | None) -> int:
    """Return the status that the facts give a draft; one without a decision waits, or has expired just now."""
    for fact in facts:
        if statuses := STATUSES.get(fact.WhichOneof("fact") or ""):
            return statuses[-1]
    over = DraftStatus.DRAFT_STATUS_EXPIRED
    return over if read == over else DraftStatus.DRAFT_STATUS_WAITING


def account_findings(history: AccountHistory, ledger: AccountsLedger) -> list[str]:
    """Return the findings about users, teams and drafts; each begins with the name of the rule."""
    return [
        *(f"reads: {error}" for error in ledger.errors),
        *_lost(history, ledger),
        *_overwritten(history),
        *_wrongly_decided(history),
        *_wrong_tasks(history),
    ]


def _lost(history: AccountHistory, ledger: AccountsLedger) -> Iterator[str]:
    users = {user_id: versions[-1].display_name for user_id, versions in history.users().items()}
    teams = {team_id: versions[-1] for team_id, versions in history.teams().items()}
    created, revoked = history.tokens()
    for user_id, user in ledger.users.items():
        if users.get(user_id) != user.display_name:
            yield f"lost: user {user_id} was answered as {user.display_name}, and is {users.get(user_id)} in the log"
    for team_id, team in ledger.teams.items():
        if teams.get(team_id) != team:
            yield f"lost: team {team_id} was answered as {team}, and is {teams.get(team_id)} in the log"
    for appkey, team_id in ledger.apps.items():
        if history.apps().get(appkey) != team_id:
            yield f"lost: app {appkey} was given to team {team_id}"
    for token_id in sorted((ledger.tokens - created) | (ledger.revoked_tokens - revoked)):
        yield f"lost: the latest change of API token {token_id} was answered and is not in the log"
    yield from _lost_drafts(history.drafts(), ledger)


def _lost_drafts(drafts: Mapping[str, Sequence[DraftFact]], ledger: AccountsLedger) -> Iterator[str]:
    for draft_id, draft in ledger.drafts.items():
        if draft not in _contents(drafts.get(draft_id, ())):
            yield f"lost: the content of draft {draft_id} was answered and is not in the log"
    for draft_id, decision in ledger.decisions.items():
        if decision not in [fact.WhichOneof("fact") for fact in drafts.get(draft_id, ())]:
            yield f"lost: draft {draft_id} was answered as {decision}, which is not in the log"


def _contents(facts: Sequence[DraftFact]) -> Sequence[Draft]:
    return [fact.submitted.draft for fact in facts if fact.HasField("submitted")]


def _overwritten(history: AccountHistory) -> Iterator[str]:
    """Yield the users, teams and drafts that a change did not leave in the version after the one before."""
    numbers = {
        **{f"user {key}": [user.version for user in versions] for key, versions in history.users().items()},
        **{f"team {key}": [team.version for team in versions] for key, versions in history.teams().items()},
        **{f"draft {key}": [draft.version for draft in _contents(facts)] for key, facts in history.drafts().items()},
    }
    for name, found in numbers.items():
        if found != list(range(1, len(found) + 1)):
            yield f"overwritten: the log has the versions {found} of {name}"


def _wrongly_decided(history: AccountHistory) -> Iterator[str]:
    """Yield the drafts with two decisions, with facts in the wrong order, or approved with another content."""
    for draft_id, facts in history.drafts().items():
        kinds = [fact.WhichOneof("fact") or "" for fact in facts]
        changes = [kind for kind in kinds if kind != "submitted"]
        is_right = changes in ([], ["approved"], ["approved", "sent"], ["rejected"], ["withdrawn"], ["expired"])
        if not is_right or kinds[len(kinds) - len(changes) :] != changes:
            yield f"decided wrongly: draft {draft_id} has the facts {kinds}"
        approved = [fact.approved.digest for fact in facts if fact.HasField("approved")]
        if approved and approved[-1] != _contents(facts)[-1].digest:
            yield f"decided wrongly: the approval of draft {draft_id} is that of an earlier content"


def _wrong_tasks(history: AccountHistory) -> Iterator[str]:
    """Yield the drafts that are a task without an approval, or another one, and those noted as sent that are none."""
    for draft_id, facts in history.drafts().items():
        kinds = {fact.WhichOneof("fact") for fact in facts}
        task = history.tasks.get(draft_id)
        if task is None:
            if "sent" in kinds:
                yield f"lost: draft {draft_id} was noted as sent and is no task"
        elif "approved" not in kinds:
            yield f"sent wrongly: draft {draft_id} is a task and was not approved"
        elif list(task.pushes) != list(_contents(facts)[-1].task.pushes):
            yield f"sent wrongly: the task of draft {draft_id} has another content than what was approved"
