"""Sends the fuzzer's cases to the service, and returns the problem with an answer."""

import asyncio
from collections import Counter

from tests.soak.fuzz.cases import Call, Case, Head, Names, Payload, Pipeline, WireFrames
from tests.soak.fuzz.device_client import FuzzedDevice
from tests.soak.fuzz.http_client import HttpClient
from tests.soak.fuzz.service import FuzzedService

BOUND_S = 60.0
"""How long an answer may take on the busiest machine; a later one counts as none."""


class Client:
    """Sends the cases of one organisation, one at a time; clients run in parallel. `results` counts the answers."""

    def __init__(self, service: FuzzedService, names: Names, results: Counter[str]) -> None:
        self._http = HttpClient(service, names, results)
        self._device = FuzzedDevice(service, names, results)

    async def problem(self, case: Case) -> str | None:
        """Send the case; return the problem with its answer, or None."""
        try:
            async with asyncio.timeout(BOUND_S):
                return await self._send(case.payload)
        except TimeoutError:
            return f"no answer within {BOUND_S:g} s"
        except Exception as error:
            return f"the client failed: {type(error).__name__}: {error}"

    def close(self) -> None:
        self._device.disconnect()

    async def _send(self, payload: Payload) -> str | None:
        match payload:
            case Call():
                return await self._http.call(payload)
            case Pipeline():
                return await self._http.pipeline(payload)
            case Head():
                return await self._http.head(payload)
            case WireFrames():
                return await self._device.problem(payload)
