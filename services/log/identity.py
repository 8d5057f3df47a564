"""The identity of the log that a state was built from, stored beside the state."""

from pathlib import Path

from services.errors import ConflictError, UnavailableError
from services.log.port import Log

LOG_IDENTITY_FILE = "log-identity"


def check_log_identity(directory: Path, log: Log, role: str) -> None:
    """Check that the role's state in the directory was built from this log; store the log's identity if none is stored.

    ConflictError: it was built from another log, even if this one has grown past the offsets of the state.
    UnavailableError: the directory cannot be written.
    """
    known = noted_log_identity(directory)
    if known == log.identity or not log.identity:
        return
    if known:
        raise ConflictError(
            f"the state of {role} belongs to another log: it was built from {known}, but this one is"
            f" {log.identity}. Bring that log back. Where it is lost and this one is a backup of it, let `carillon"
            " restore` reserve device numbers if that was not done (docs/operators/backup.md), and then rebuild the"
            f" state of each role from this one: `carillon replay {role}`"
        )
    try:
        directory.mkdir(parents=True, exist_ok=True)
        (directory / LOG_IDENTITY_FILE).write_text(log.identity, encoding="ascii")
    except OSError as error:
        raise UnavailableError(f"the state {directory} cannot be written: {error}") from error


def noted_log_identity(directory: Path) -> str:
    """Return the identity of the log that the state in the directory was built from; "" where none is noted."""
    file = directory / LOG_IDENTITY_FILE
    return file.read_text(encoding="ascii") if file.exists() else ""


def forget_log_identity(directory: Path) -> None:
    """Let the next check accept any log, because the state in the directory is about to be emptied."""
    (directory / LOG_IDENTITY_FILE).unlink(missing_ok=True)
