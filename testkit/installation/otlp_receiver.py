"""A collector of traces that takes OTLP over gRPC and keeps the spans."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import NamedTuple

import grpc
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)


class ReceivedSpan(NamedTuple):
    """A span: its own id and its parent's, b"" where it has none; `msgid` is 0 where it names no push."""

    name: str
    trace_id: bytes
    span_id: bytes
    parent_id: bytes
    start_ns: int
    end_ns: int
    msgid: int


class OtlpReceiver(TraceServiceServicer):
    """Keeps the spans that processes export."""

    def __init__(self) -> None:
        self.url = ""
        self.spans: list[ReceivedSpan] = []
        self.exported: list[bytes] = []
        """The requests of exporters, serialized."""

    def Export(self, request: ExportTraceServiceRequest, context: grpc.ServicerContext) -> ExportTraceServiceResponse:
        self.exported.append(request.SerializeToString())
        for resource in request.resource_spans:
            for scope in resource.scope_spans:
                for span in scope.spans:
                    values = {attribute.key: attribute.value for attribute in span.attributes}
                    msgid = values["carillon.msgid"].int_value if "carillon.msgid" in values else 0
                    times = span.start_time_unix_nano, span.end_time_unix_nano
                    ids = span.trace_id, span.span_id, span.parent_span_id
                    self.spans.append(ReceivedSpan(span.name, *ids, *times, msgid))
        return ExportTraceServiceResponse()

    def trace_with(self, msgid: int) -> list[ReceivedSpan]:
        """Return the received spans of the trace of a push, by their start."""
        trace_ids = {span.trace_id for span in self.spans if span.msgid == msgid}
        assert len(trace_ids) <= 1, "a push has one trace"
        return sorted((span for span in self.spans if span.trace_id in trace_ids), key=lambda span: span.start_ns)


@contextmanager
def otlp_receiver() -> Iterator[OtlpReceiver]:
    """Run a collector on a free port."""
    receiver = OtlpReceiver()
    server = grpc.server(ThreadPoolExecutor(2))
    add_TraceServiceServicer_to_server(receiver, server)  # type: ignore[no-untyped-call]
    receiver.url = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield receiver
    finally:
        server.stop(None)
