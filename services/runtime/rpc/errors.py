"""Translation of failed calls into the error tree. A cancellation of the running task itself is passed on."""

import asyncio

import grpc.aio

from services.runtime.errors import BY_CODE, CarillonError, UnavailableError
from services.runtime.process.logs import logger
from services.runtime.process.metrics import RPC_ERRORS

_ENDED_WHILE_WRITING = "Internal error from Core"
"""The text that grpc.aio gives instead of the server's status when a stream ends while its client writes."""


def servicer_error(method: str, error: BaseException) -> CarillonError:
    """Return the error that a caller sees when a servicer failed: any but a CarillonError becomes "internal error"."""
    if isinstance(error, asyncio.CancelledError):
        error = _cancelled_call(method, error)
    elif not isinstance(error, CarillonError):
        logger.error("a call failed", method=method, exc_info=error)
        error = CarillonError("internal error")
    RPC_ERRORS.labels(method, error.code).inc()
    return error


def channel_error(method: str, error: grpc.aio.AioRpcError | asyncio.CancelledError) -> CarillonError:
    """Return the error that a caller sees when a call over a socket failed."""
    if isinstance(error, asyncio.CancelledError):
        return _cancelled_call(method, error)
    if error.details() == _ENDED_WHILE_WRITING:
        return UnavailableError(f"{method} ended while requests were still being sent")
    return BY_CODE.get(error.code().name, UnavailableError)(error.details() or error.code().name)


def _cancelled_call(method: str, error: asyncio.CancelledError) -> CarillonError:
    task = asyncio.current_task()
    if task is None or task.cancelling() > 0:  # not so when the task waited for something that was cancelled
        raise error
    return UnavailableError(f"{method} was given up")
