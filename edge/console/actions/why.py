"""Why devices got a push or not: one sentence for each device, with the records behind it."""

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from edge.console.actions.pushes import push_of
from edge.console.actions.tasks import unsent_task
from edge.console.actions.visible import app_of
from edge.console.backend import Backend
from edge.console.view.explanation import Explanation, Words, explain
from protos.analytics.v1.analytics_pb2 import AuditPushResponse, ExclusionReason, PushOnDevice
from protos.registry.v1.apps_pb2 import PLATFORM_IOS
from protos.registry.v1.devices_pb2 import Device
from protos.scheduling.v1.scheduling_pb2 import Task


class Answer(NamedTuple):
    """The explanation for one device, and what it is made of."""

    device: Device
    explanation: Explanation
    push: PushOnDevice


class Answers(NamedTuple):
    """The explanations for several devices. `request_json`: the request of the push."""

    request_json: str
    of_devices: list[Answer]
    records_behind: int


async def why(backend: Backend, appkey: str, msgid: str, devices: Sequence[Device], words: Words) -> Answers:
    """Return why each of the devices, one at least, got the push or not. Errors as for `push_of`."""
    audits = await asyncio.gather(
        *(push_of(backend, appkey, msgid, device.token, device_only=True) for device in devices)
    )
    app = app_of(backend, appkey)
    pause = app.pause if app.HasField("pause") else backend.apps.installation_pause
    is_ios = app.platform == PLATFORM_IOS
    task = await _unsent_task(backend, appkey, msgid, audits)
    answers = [
        Answer(device, explain(audit.device, words, is_ios=is_ios, pause=pause, task=task), audit.device)
        for device, audit in zip(devices, audits, strict=True)
    ]
    return Answers(audits[0].request_json, answers, max(audit.records_behind for audit in audits))


async def _unsent_task(backend: Backend, appkey: str, msgid: str, audits: Sequence[AuditPushResponse]) -> Task | None:
    """Return the timed task that has not sent the push. Audits of one device do not tell which it is."""
    not_started = ExclusionReason.EXCLUSION_REASON_PUSH_NOT_STARTED
    if all(audit.device.exclusion.reason != not_started for audit in audits):
        return None
    return await unsent_task(backend, await push_of(backend, appkey, msgid))
