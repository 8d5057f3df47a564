"""The tree of errors with which requests and calls between roles are answered.

    CarillonError              code INTERNAL            result 500
    ├── InputError             code INVALID_ARGUMENT    result 400   the caller's fault; says which field
    ├── NotFoundError          code NOT_FOUND           result 400   no such app, device, push or task
    ├── ConflictError          code FAILED_PRECONDITION result 400   not possible in the present state
    ├── SignError              code UNAUTHENTICATED     result 401   wrong sign, unknown app
    ├── BusyError              code RESOURCE_EXHAUSTED  result 500   a bounded queue is full; try again
    ├── UnavailableError       code UNAVAILABLE         result 500   a role or store does not answer; try again
    │   └── NotOwnerError      code ABORTED             result 500   nothing was done; another process answers
    ├── DeadlineError          code DEADLINE_EXCEEDED   result 500   outcome unknown; repeat with the same id
    ├── PermissionDeniedError  code PERMISSION_DENIED   result 500   the role or the account may not do this
    ├── ForbiddenError         not in calls             result 403   a pause or a setting of the app forbids it
    └── RetryLaterError                                              says when to try again
        ├── TooManyRequestsError   not in calls         result 429   over a limit
        └── TryLaterError          not in calls         result 503   a role that answers queries cannot answer now

`code` names the gRPC status that carries the error between roles, `result` is the number in the public answer. The
results 403, 429 and 503 are also the HTTP status of the answer.
"""


class CarillonError(Exception):
    code = "INTERNAL"
    result = 500


class InputError(CarillonError):
    code = "INVALID_ARGUMENT"
    result = 400


class NotFoundError(CarillonError):
    code = "NOT_FOUND"
    result = 400


class ConflictError(CarillonError):
    code = "FAILED_PRECONDITION"
    result = 400


class SignError(CarillonError):
    code = "UNAUTHENTICATED"
    result = 401


class BusyError(CarillonError):
    code = "RESOURCE_EXHAUSTED"


class UnavailableError(CarillonError):
    code = "UNAVAILABLE"


class NotOwnerError(UnavailableError):
    """The process stands by, or does not answer yet. Nothing was done, so any call may be made again."""

    code = "ABORTED"


class DeadlineError(CarillonError):
    code = "DEADLINE_EXCEEDED"


class PermissionDeniedError(CarillonError):
    code = "PERMISSION_DENIED"


class ForbiddenError(CarillonError):
    """The app is paused, or its settings forbid the address, or demand a proof or a replay-safe sign: HTTP 403."""

    result = 403


class RetryLaterError(CarillonError):
    """The answer has the HTTP header Retry-After. Nothing was done."""

    def __init__(self, message: str, retry_after_s: int) -> None:
        super().__init__(message)
        self.retry_after_s = max(1, retry_after_s)


class TooManyRequestsError(RetryLaterError):
    """A quota or another limit of requests is used up: HTTP 429."""

    result = 429


class TryLaterError(RetryLaterError):
    """The request cannot be answered at present: HTTP 503."""

    result = 503


BY_CODE: dict[str, type[CarillonError]] = {
    error.code: error
    for error in (
        CarillonError,
        InputError,
        NotFoundError,
        ConflictError,
        SignError,
        BusyError,
        UnavailableError,
        NotOwnerError,
        DeadlineError,
        PermissionDeniedError,
    )
}
