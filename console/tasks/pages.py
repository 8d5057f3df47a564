"""Timed tasks: the pushes that wait for their time, and what became of earlier ones."""

from collections.abc import Sequence
from typing import NamedTuple

from falcon.asgi import Request, Response

from console.pushes.actions import schedulers
from console.pushes.view import Content, content
from console.shell.page import AWAY, Page, go_to, problem_of, unknown_app, visit_of
from console.shell.visit import Visit
from console.tasks.actions import cancel_task, may_cancel
from protos.push.v1.push_pb2 import SendPush
from protos.registry.v1.apps_pb2 import App
from protos.scheduling.v1.scheduling_pb2 import Task
from services.errors import CarillonError

PAGE_TASKS = 50


class TaskLine(NamedTuple):
    """A task with those of its apps that the user may see, and the push of the first of them."""

    task: Task
    apps: list[App]
    push: SendPush
    content: Content
    may_cancel: bool
    made_by: str


class TasksPageBase(Page):
    """The base of the list of tasks and of the form that cancels one."""

    async def show_tasks(self, request: Request, response: Response, problem: str = "") -> None:
        """Answer with a page of the tasks of the user's apps: those that wait by due time, then the others."""
        visit = visit_of(request)
        apps = self.visible_apps(visit)
        appkey = request.get_param("appkey") or ""
        chosen = [app for app in apps if appkey in ("", app.appkey)]
        problem = problem or unknown_app(visit, appkey, apps)
        number = request.get_param_as_int("page", min_value=1, max_value=10_000) or 1
        appkeys = [app.appkey for app in chosen]
        page = await self.site.tasks.waiting_first(appkeys, page_num=number, page_size=PAGE_TASKS)
        made_by = await self._made_by(appkeys, page.tasks)
        self.show(
            request,
            response,
            "tasks/list.html",
            400 if problem else 200,
            apps=apps,
            chosen=chosen,
            lines=[_line(visit, task, apps, made_by.get(task.task_key, "")) for task in page.tasks],
            page=number,
            has_more=page.total > number * PAGE_TASKS,
            problem=problem,
        )

    async def _made_by(self, appkeys: list[str], tasks: Sequence[Task]) -> dict[str, str]:
        """Return the names of those who made the tasks, by task key; none while analytics does not answer."""
        try:
            return await schedulers(self.site, appkeys, tasks)
        except AWAY:
            return {}


class TasksPage(TasksPageBase):
    """GET lists the tasks of the user's apps; `appkey` and `page` choose among them."""

    async def on_get(self, request: Request, response: Response) -> None:
        await self.show_tasks(request, response)


class CancelTaskPage(TasksPageBase):
    """POST cancels a task that waits. The user may send with every app of it."""

    async def on_post(self, request: Request, response: Response, appkey: str, task_key: str) -> None:
        visit, app = visit_of(request), self.app(appkey)
        try:
            await cancel_task(self.site, visit, app.appkey, task_key)
        except CarillonError as error:
            await self.show_tasks(request, response, problem_of(error, visit))
            return
        visit.notify(visit.gettext("The task is cancelled: nothing of it is sent."))
        raise go_to("/tasks")


def _line(visit: Visit, task: Task, apps: list[App], made_by: str) -> TaskLine:
    by_key = {push.appkey: push for push in task.pushes}
    seen = [app for app in apps if app.appkey in by_key]
    # The request stands beside the first push alone.
    request_json = next((push.request_json for push in task.pushes if push.request_json), "")
    return TaskLine(task, seen, by_key[seen[0].appkey], content(request_json), may_cancel(visit, task), made_by)
