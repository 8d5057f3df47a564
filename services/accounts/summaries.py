"""Users, teams, tokens and drafts as the calls return them: without secrets and hashes."""

from protos.accounts.v1.accounts_pb2 import Token, User
from protos.accounts.v1.drafts_pb2 import DraftStatus, StoredDraft
from protos.accounts.v1.service_pb2 import TeamSummary, TokenSummary, UserSummary
from protos.scheduling.v1.scheduling_pb2 import CreateTask
from services.accounts.decide import user_by_id
from services.accounts.decide_teams import team_by_id
from services.accounts.drafts.store import draft_words
from services.accounts.state import DraftState
from services.accounts.store import AccountTable


def user_summary(accounts: AccountTable, user: User) -> UserSummary:
    left = sum(not accounts.is_used(code_hash) for code_hash in user.recovery_code_hashes)
    return UserSummary(
        user_id=user.user_id,
        login=user.login,
        display_name=user.display_name,
        disabled=user.disabled,
        administrator=user.administrator,
        session_epoch=user.session_epoch,
        locale=user.locale,
        zone=user.zone,
        subject=user.subject if user.HasField("subject") else None,
        created_ms=user.created_ms,
        has_password=bool(user.password_hash),
        has_totp=bool(user.sealed_totp_secret),
        recovery_codes_left=left,
        last_log_in_ms=accounts.log_in_state(user.user_id).last_ms,
        roles_by_groups=user.roles_by_groups,
        mail_address=user.mail_address,
    )


def summary_of_user(accounts: AccountTable, user_id: str) -> UserSummary:
    """Return the present summary of a user. NotFoundError: there is none with this id."""
    return user_summary(accounts, user_by_id(accounts, user_id))


def summary_of_team(accounts: AccountTable, team_id: str) -> TeamSummary:
    """Return a team with its apps. NotFoundError: there is none with this id."""
    return TeamSummary(team=team_by_id(accounts, team_id), appkeys=accounts.apps_of(team_id))


def token_summary(accounts: AccountTable, token: Token) -> TokenSummary:
    return TokenSummary(
        token_id=token.token_id,
        team_id=token.team_id,
        name=token.name,
        role=token.role,
        created_ms=token.created_ms,
        expires_ms=token.expires_ms,
        created_by=token.created_by,
        last_used_ms=accounts.last_use_ms(token.token_id),
    )


def stored_draft(kept: DraftState, now_ms: int, *, with_content: bool = True) -> StoredDraft:
    title, text = draft_words(kept.draft)
    answer = StoredDraft(
        draft=kept.draft,
        status=kept.status_at(now_ms),
        decided_by=kept.decided_by,
        decided_ms=kept.decided_ms if kept.status != DraftStatus.DRAFT_STATUS_EXPIRED else 0,
        reason=kept.reason,
        title=title,
        text=text,
    )
    if not with_content:
        answer.draft.ClearField("body_json")
        answer.draft.task.CopyFrom(CreateTask(due_ms=kept.draft.task.due_ms))
    return answer
