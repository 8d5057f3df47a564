"""Timed tasks: that of a push, whether an account may cancel one, and its cancel."""

import falcon

from console.pushes.view import unsent_task_key
from console.shell.access import Requester
from console.shell.backend import Backend
from protos.analytics.v1.analytics_pb2 import AuditPushResponse
from protos.scheduling.v1.scheduling_pb2 import TASK_STATUS_SENT, TASK_STATUS_UNSENT, Task
from services.domain.permissions import Action
from services.errors import NotFoundError


async def unsent_task(backend: Backend, audit: AuditPushResponse) -> Task | None:
    """Return the timed task of an audited push that waits, or that ended before it sent the push; None: it was sent."""
    task_key = unsent_task_key(audit)
    if not task_key:
        return None
    try:
        task = await backend.tasks.get(task_key, [audit.appkey])
    except NotFoundError:
        return None
    return task if task.status != TASK_STATUS_SENT else None


def may_cancel(requester: Requester, task: Task) -> bool:
    """Return whether the task waits and the account may send with every app of it."""
    return task.status == TASK_STATUS_UNSENT and _may_send(requester, task)


async def cancel_task(
    backend: Backend, requester: Requester, appkey: str, task_key: str, event_id: bytes = b""
) -> None:
    """Cancel a task of the app. HTTP 403: it sends with an app of another team too. Errors as for TaskCalls.cancel."""
    task = await backend.tasks.get(task_key, [appkey])
    if not _may_send(requester, task):
        raise falcon.HTTPForbidden
    await backend.tasks.cancel(task_key, [appkey], requester.origin, event_id)


def _may_send(requester: Requester, task: Task) -> bool:
    return all(requester.may_app(Action.SEND, push.appkey) for push in task.pushes)
