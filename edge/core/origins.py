"""Where commands come from, for the records they are written to."""

import itertools
import os

from falcon.asgi import Request

from protos.runtime.v1.log_pb2 import Origin


class Origins:
    """Through which door and from where a request came; ids of requests are this process's own number and a count."""

    def __init__(self, door: str) -> None:
        self._door = door
        self._process = os.urandom(6).hex()
        self._count = itertools.count(1)

    def of(self, request: Request) -> Origin:
        return Origin(door=self._door, address=request.remote_addr, request_id=f"{self._process}-{next(self._count)}")
