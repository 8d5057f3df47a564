"""What both sides of calls between roles share: limits, and the translation of failed calls into the error tree."""

import asyncio

import grpc.aio

from services.errors import BY_CODE, CarillonError, UnavailableError
from services.process.logs import logger
from services.process.metrics import RPC_ERRORS

_ENDED_WHILE_WRITING = "Internal error from Core"
"""The text that grpc.aio gives instead of the server's status when a stream ends while its client writes."""


def servicer_error(method: str, error: BaseException) -> CarillonError:
    """Return the error that a caller sees when a servicer failed: "internal error" for one outside the tree."""
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


# Limits of calls between roles, the same on both sides.

DEADLINE_S = 10.0
"""Deadline of a call that names none, seconds."""

_MAX_BYTES = 32 * 1024 * 1024
_MAX_METADATA_BYTES = 64 * 1024
_WINDOW_BYTES = 1024 * 1024
"""Bytes of a stream on their way that the receiver has not read."""

GRPC_LIMITS = [
    ("grpc.max_receive_message_length", _MAX_BYTES),
    ("grpc.max_send_message_length", _MAX_BYTES),
    ("grpc.max_metadata_size", _MAX_METADATA_BYTES),
    ("grpc.absolute_max_metadata_size", _MAX_METADATA_BYTES),
    # gRPC would measure the network by a ping beside each message, and its threads, once woken, look for work again and
    # again for seconds: a third to half of what they take while nothing happens.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", _WINDOW_BYTES),
]
