"""Origins of requests, recorded with the commands that they cause."""

import itertools
import os

from falcon.asgi import Request

from protos.runtime.v1.log_pb2 import Origin
from services.runtime.http.client_address import ClientAddresses
from services.runtime.traces.push_traces import trace_of


class Origins:
    """Makes the Origin of each request of one HTTP interface (android, ios or v2).

    Request ids are a random process id and a counter.
    """

    def __init__(self, interface: str, addresses: ClientAddresses) -> None:
        self._interface = interface
        self._addresses = addresses
        self._process = os.urandom(6).hex()
        self._count = itertools.count(1)

    def of(self, request: Request) -> Origin:
        request_id = f"{self._process}-{next(self._count)}"
        address = self._addresses.of_scope(request.scope)
        trace = trace_of(getattr(request.context, "span", None))
        return Origin(interface=self._interface, address=address, request_id=request_id, trace=trace)
