"""OpenTelemetry traces of pushes: from the HTTP request through the log to a device's acknowledgement.

The edge decides which requests are traced. A `trace`, the ids of a trace and of a span in it, is in the origin of the
request's records and in the messages to gateways; an empty one means that nothing is traced. Each process keeps what
it needs of its latest traced pushes. Without a URL of a collector nothing is imported, and each function returns at
once. A broadcast has one span for each gateway process and not one for each device.
"""

import asyncio
import os
import socket
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from random import Random
from typing import TYPE_CHECKING, NamedTuple, TypeVar

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import Span

MAX_PUSHES = 10_000
"""Upper bound of the traced pushes that a process remembers; the oldest are forgotten."""

Attributes = Mapping[str, str | int]
Item = TypeVar("Item")


class _Written(NamedTuple):
    """A message that the gateway has written: its trace, and the time in ns since 1970."""

    trace: bytes
    time_ns: int


class _Traces:
    """The traces of one process that exports spans."""

    def __init__(self, exporter: "SpanExporter", ratio: float, random: Random) -> None:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.sdk.trace.sampling import ALWAYS_ON

        instance = f"{socket.gethostname()}/{os.getpid()}"
        resource = Resource.create({"service.name": "carillon", "service.instance.id": instance})
        self.provider = TracerProvider(ALWAYS_ON, resource, shutdown_on_exit=False)
        self.provider.add_span_processor(BatchSpanProcessor(exporter))
        self._ratio = ratio
        self._random = random
        self._tracer = self.provider.get_tracer("carillon")
        self.starting: OrderedDict[int, Span] = OrderedDict()
        self.writing: OrderedDict[int, Span] = OrderedDict()
        self.written: OrderedDict[int, _Written] = OrderedDict()

    def root(self, name: str) -> "Span | None":
        """Start a trace, if the ratio chooses this one. The samplers of OpenTelemetry take 6 us a request."""
        if self._random.random() >= self._ratio:
            return None
        from opentelemetry.trace import SpanKind

        return self._tracer.start_span(name, kind=SpanKind.SERVER)

    def child(
        self, trace: bytes, name: str, attributes: Attributes | None = None, start_ns: int | None = None
    ) -> "Span":
        from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, set_span_in_context

        trace_id, span_id = int.from_bytes(trace[:16], "big"), int.from_bytes(trace[16:], "big")
        parent = SpanContext(trace_id, span_id, is_remote=True, trace_flags=TraceFlags(TraceFlags.SAMPLED))
        context = set_span_in_context(NonRecordingSpan(parent))
        return self._tracer.start_span(name, context, attributes=attributes, start_time=start_ns)


_active: _Traces | None = None


@asynccontextmanager
async def exporting(exporter: "SpanExporter | None", ratio: float, random: Random | None = None) -> AsyncIterator[None]:
    """Export the spans of this share of the requests inside the block; None: trace nothing."""
    global _active
    if exporter is None:
        yield
        return
    _active = traces = _Traces(exporter, ratio, random or Random())  # noqa: S311
    try:
        yield
    finally:
        _active = None
        await asyncio.to_thread(traces.provider.shutdown)


def otlp_exporter(url: str | None) -> "SpanExporter | None":
    """Return the exporter to a collector that takes OTLP over gRPC; None without a URL."""
    if url is None:
        return None
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter

    return OTLPSpanExporter(url)


# --- the edge


def begin_request() -> "Span | None":
    """Start the trace of an HTTP request; None when this one is not traced."""
    return _active.root("request") if _active is not None else None


def end_request(span: "Span | None", name: str, attributes: Attributes) -> None:
    """End the span of a request that has been answered."""
    if span is not None:
        span.update_name(name)
        span.set_attributes(attributes)
        span.end()


def trace_of(span: "Span | None") -> bytes:
    """Return the trace in which spans under this one are made; b"" without one."""
    if span is None:
        return b""
    context = span.get_span_context()
    return context.trace_id.to_bytes(16, "big") + context.span_id.to_bytes(8, "big")


@contextmanager
def appending(trace: bytes, msgid: int) -> Iterator[None]:
    """Record the append of a push to the log as the span `log append`."""
    if _active is None or not trace:
        yield
        return
    with _as_ended(_active.child(trace, "log append", {"carillon.msgid": msgid})):
        yield


# --- delivery


def read(trace: bytes, msgid: int) -> None:
    """Begin the span `delivery start` of a push that delivery has read."""
    if _active is not None and trace and msgid not in _active.starting:
        _keep_span(_active.starting, msgid, _active.child(trace, "delivery start", {"carillon.msgid": msgid}))


def started(msgid: int, error: str | None = None) -> None:
    """End the span `delivery start`: the push is in the log as started, and queued for gateways; or it failed."""
    span = _active.starting.get(msgid) if _active is not None else None
    if span is not None and span.is_recording():
        if error is not None:
            _fail(span, error)
        span.end()


def sent_trace(msgid: int) -> bytes:
    """Return the trace that goes with the push to gateways."""
    return trace_of(_active.starting.get(msgid)) if _active is not None else b""


# --- the gateway


def handed(trace: bytes, msgid: int, connections: int) -> None:
    """Begin the span `gateway write` of a message that the gateway has received, for `connections` connections."""
    if _active is not None and trace:
        attributes = {"carillon.msgid": msgid, "carillon.connections": connections}
        _keep_span(_active.writing, msgid, _active.child(trace, "gateway write", attributes))


def first_written(msgids: Iterable[int]) -> None:
    """End the spans `gateway write` of these messages: the first connections have been written to."""
    if _active is None or not _active.writing:
        return
    for msgid in msgids:
        if (span := _active.writing.pop(msgid, None)) is not None:
            span.end()
            _keep(_active.written, msgid, _Written(trace_of(span), time.time_ns()))


def acknowledged(msgids: Iterable[int]) -> None:
    """Record the first acknowledgement of a message after its write as the span `device acknowledgement`."""
    if _active is None or not _active.written:
        return
    for msgid in msgids:
        if (message := _active.written.pop(msgid, None)) is not None:
            attributes = {"carillon.msgid": msgid}
            _active.child(message.trace, "device acknowledgement", attributes, message.time_ns).end()


# --- spans


@contextmanager
def _as_ended(span: "Span") -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        _fail(span, f"{type(error).__name__}: {error}")
        raise
    finally:
        span.end()


def _fail(span: "Span", error: str) -> None:
    from opentelemetry.trace import StatusCode

    span.set_status(StatusCode.ERROR, error)


def _keep_span(kept: "OrderedDict[int, Span]", msgid: int, span: "Span") -> None:
    """Keep the span, and end the one that is forgotten for it."""
    if (forgotten := _keep(kept, msgid, span)) is not None and forgotten.is_recording():
        forgotten.end()


def _keep(kept: "OrderedDict[int, Item]", msgid: int, item: Item) -> "Item | None":
    """Keep the item; return the one forgotten for it: the same push's former one, or the oldest above MAX_PUSHES."""
    replaced = kept.pop(msgid, None)
    kept[msgid] = item
    return kept.popitem(last=False)[1] if len(kept) > MAX_PUSHES else replaced
