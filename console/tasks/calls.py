"""Calls about timed tasks."""

from console.pushes.answers import Task, TaskCancelled, TaskList, TaskPush
from console.pushes.view import content
from console.shell.access import Requester
from console.shell.backend import Backend, app_of, visible_apps
from console.shell.calls import after
from console.shell.requests import TaskListParams, TaskParams
from console.tasks import actions
from protos.scheduling.v1.scheduling_pb2 import Task as StoredTask
from protos.scheduling.v1.scheduling_pb2 import TaskStatus


async def list_tasks(backend: Backend, requester: Requester, params: TaskListParams) -> TaskList:
    """List the timed tasks of the team's apps: those that wait, the next one due first, then the others, newest first.

    A task that is added or ends between two pages moves others.
    """
    visible = [app.appkey for app in visible_apps(backend, requester) if params.appkey in ("", app.appkey)]
    if not visible:
        return TaskList([], "")
    number = after(params.cursor) or 1
    page = await backend.tasks.waiting_first(visible, page_num=number, page_size=params.limit)
    following = str(number + 1) if page.total > number * params.limit else ""
    return TaskList([_task(requester, task, set(visible)) for task in page.tasks], following)


async def task(backend: Backend, requester: Requester, params: TaskParams) -> Task:
    """Return one timed task of an app."""
    found = await backend.tasks.get(params.task_key, [app_of(backend, params.appkey).appkey])
    return _task(requester, found, {app.appkey for app in visible_apps(backend, requester)})


async def cancel_task(backend: Backend, requester: Requester, params: TaskParams) -> TaskCancelled:
    """Cancel a timed task that waits. The token's team has every app of it."""
    await actions.cancel_task(backend, requester, app_of(backend, params.appkey).appkey, params.task_key)
    return TaskCancelled(params.task_key)


def _task(requester: Requester, task: StoredTask, visible: set[str]) -> Task:
    words = [(push, content(push.request_json)) for push in task.pushes if push.appkey in visible]
    pushes = [TaskPush(push.appkey, push.msgid, said.title, said.text) for push, said in words]
    status = TaskStatus.Name(task.status).removeprefix("TASK_STATUS_").lower()
    return Task(task.task_key, status, task.created_ms, task.due_ms, pushes, actions.may_cancel(requester, task))
