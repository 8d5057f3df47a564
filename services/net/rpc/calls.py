"""What both sides of calls between roles share: limits, and the translation of failed calls into the error tree."""

import asyncio
from collections.abc import Iterable

import grpc.aio
from google.protobuf.message import DecodeError

from protos.runtime.v1.errors_pb2 import ErrorDetail
from services.errors import BY_STATUS, CarillonError, Code, Field, UnavailableError
from services.process.logs import logger
from services.process.metrics import RPC_ERRORS

Metadata = tuple[tuple[str, bytes], ...]

_ENDED_WHILE_WRITING = "Internal error from Core"
"""The text that grpc.aio gives instead of the server's status when a stream ends while its client writes."""


def servicer_error(method: str, error: BaseException) -> CarillonError:
    """Return the error that a caller sees when a servicer failed: "internal error" for one outside the tree."""
    if isinstance(error, asyncio.CancelledError):
        error = _cancelled_call(method, error)
    elif not isinstance(error, CarillonError):
        logger.error("a call failed", method=method, exc_info=error)
        error = CarillonError("internal error")
    RPC_ERRORS.labels(method, error.status).inc()
    return error


def channel_error(method: str, error: grpc.aio.AioRpcError | asyncio.CancelledError) -> CarillonError:
    """Return the error that a caller sees when a call over a socket failed."""
    if isinstance(error, asyncio.CancelledError):
        return _cancelled_call(method, error)
    if error.details() == _ENDED_WHILE_WRITING:
        return UnavailableError(f"{method} ended while requests were still being sent")
    found = BY_STATUS.get(error.code().name, UnavailableError)(error.details() or error.code().name)
    _read_detail(found, error.trailing_metadata())
    return found


# The code and fields of an error in the trailing metadata of a call. A peer that knows neither reads the text alone.

_DETAIL_KEY = "carillon-error-bin"
_MAX_DETAIL_BYTES = 4096


def error_metadata(error: CarillonError) -> Metadata:
    """Return the code and fields of an error as metadata; none for a text alone, or if they are too large."""
    if error.code is None:
        return ()
    texts = {name: value for name, value in error.fields.items() if isinstance(value, str)}
    numbers = {name: value for name, value in error.fields.items() if isinstance(value, int)}
    try:
        detail = ErrorDetail(code=error.code.name, texts=texts, numbers=numbers).SerializeToString(deterministic=True)
    except ValueError:  # a number of more than 64 bits, or a text with half of a surrogate pair
        return ()
    return ((_DETAIL_KEY, detail),) if len(detail) <= _MAX_DETAIL_BYTES else ()


def _read_detail(error: CarillonError, metadata: Iterable[tuple[str, str | bytes]] | None) -> None:
    """Give the error the code and fields of its call; it stays a text alone if a newer peer has another code."""
    raw = next((value for key, value in metadata or () if key == _DETAIL_KEY), b"")
    try:
        detail = ErrorDetail.FromString(raw if isinstance(raw, bytes) else raw.encode())
    except DecodeError:
        return
    code = Code.__members__.get(detail.code)
    fields: dict[str, Field] = {**detail.texts, **detail.numbers}
    if code is not None and code.fields <= fields.keys():
        error.code, error.fields = code, fields


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
