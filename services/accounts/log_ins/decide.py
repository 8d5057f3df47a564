"""Decisions about log-ins: whether an attempt succeeds, and the fact that records it. Pure."""

from dataclasses import dataclass

from protos.accounts.v1.accounts_pb2 import LoggedIn, LogInFact, LogInFailed, LogInMethod, TokenUsed, User
from protos.accounts.v1.service_pb2 import LogInResult
from services.accounts.store import AccountTable
from services.domain.recorded_reasons import FixedReason

TOKEN_USE_MS = 3_600_000
"""The use of an API token is noted once in this time."""


@dataclass(frozen=True, slots=True)
class LogInAttempt:
    """An attempt to log in, after its texts were compared with those of `user`, which is None for an unknown name.

    `totp_step`: the interval whose one-time code was given, or 0. `code_hash`: that of the given recovery code.
    `only_administrators`: everybody else is refused.
    """

    user: User | None
    is_password_right: bool
    is_code_given: bool = False
    totp_step: int = 0
    code_hash: bytes = b""
    only_administrators: bool = False


def decide_log_in(accounts: AccountTable, attempt: LogInAttempt) -> tuple["LogInResult.ValueType", list[LogInFact]]:
    """Return the answer and the fact. A one-time code or a recovery code is accepted once."""
    if attempt.user is None:
        return failed("", FixedReason.UNKNOWN_NAME)
    user = accounts.user(attempt.user.user_id)
    if user is None or not _has_same_secrets(user, attempt.user):
        return failed(attempt.user.user_id, FixedReason.CHANGED_MEANWHILE)
    if not attempt.is_password_right:
        return failed(user.user_id, FixedReason.WRONG_PASSWORD)
    if user.disabled:
        return failed(user.user_id, FixedReason.DISABLED)
    if attempt.only_administrators and not user.administrator:
        return failed(user.user_id, FixedReason.NO_PASSWORD_ALLOWED)
    if not user.sealed_totp_secret:
        return logged_in(user, LogInMethod.LOG_IN_METHOD_PASSWORD)
    if not attempt.is_code_given:
        return LogInResult.LOG_IN_RESULT_CODE_NEEDED, []
    return _with_code(accounts, user, attempt)


def decide_token_use(accounts: AccountTable, token_id: str, now_ms: int) -> list[LogInFact]:
    """Return the fact that an API token was used; nothing if one was noted within the hour, or the token is unknown."""
    if accounts.token(token_id) is None or now_ms - accounts.last_use_ms(token_id) < TOKEN_USE_MS:
        return []
    return [LogInFact(token_used=TokenUsed(token_id=token_id))]


def _with_code(
    accounts: AccountTable, user: User, attempt: LogInAttempt
) -> tuple["LogInResult.ValueType", list[LogInFact]]:
    if attempt.totp_step:
        if attempt.totp_step <= accounts.log_in_state(user.user_id).totp_step:
            return failed(user.user_id, FixedReason.USED_CODE)
        return logged_in(user, LogInMethod.LOG_IN_METHOD_ONE_TIME_CODE, totp_step=attempt.totp_step)
    if attempt.code_hash not in user.recovery_code_hashes:
        return failed(user.user_id, FixedReason.WRONG_CODE)
    if accounts.is_used(attempt.code_hash):
        return failed(user.user_id, FixedReason.USED_CODE)
    return logged_in(user, LogInMethod.LOG_IN_METHOD_RECOVERY_CODE, code_hash=attempt.code_hash)


def _has_same_secrets(user: User, compared: User) -> bool:
    return (
        user.password_hash == compared.password_hash
        and user.sealed_totp_secret == compared.sealed_totp_secret
        and user.recovery_code_hashes == compared.recovery_code_hashes
    )


def logged_in(
    user: User, method: "LogInMethod.ValueType", *, totp_step: int = 0, code_hash: bytes = b""
) -> tuple["LogInResult.ValueType", list[LogInFact]]:
    """Return the answer and the fact of a log-in that succeeds."""
    fact = LoggedIn(
        user_id=user.user_id,
        method=method,
        totp_step=totp_step,
        recovery_code_hash=code_hash,
        session_epoch=user.session_epoch,
    )
    return LogInResult.LOG_IN_RESULT_OK, [LogInFact(logged_in=fact)]


def failed(user_id: str, reason: FixedReason) -> tuple["LogInResult.ValueType", list[LogInFact]]:
    """Return the answer and the fact of a log-in that is refused; `user_id` is empty where nobody has the name."""
    fact = LogInFailed(user_id=user_id, reason=reason)
    return LogInResult.LOG_IN_RESULT_REFUSED, [LogInFact(failed=fact)]
