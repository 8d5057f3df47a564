"""The endpoints of the v2 interface for timed tasks."""

from zoneinfo import ZoneInfo

from falcon.asgi import Request, Response

from edge.core.answers import Done, answer
from edge.core.authentication import Authenticator
from edge.core.tasks import Tasks
from edge.v2.apps import task_apps
from edge.v2.tasks.replies import TaskDetailReply, TaskPageReply, task_record
from edge.v2.tasks.requests import task_key, task_list


class TaskListEndpoint:
    """POST /v2/timedtasklist"""

    def __init__(self, authenticator: Authenticator, tasks: Tasks, zone: ZoneInfo) -> None:
        self._authenticator = authenticator
        self._tasks = tasks
        self._zone = zone

    async def on_post(self, request: Request, response: Response) -> None:
        signed = await self._authenticator.authenticate(request, task_apps)
        apps, query = signed.apps, await signed.read(task_list)
        page = await self._tasks.list(
            apps.appkeys, descending=query.order == 1, page_num=query.page_num, page_size=query.page_size
        )
        records = [task_record(task, apps.appkeys, self._zone) for task in page.tasks]
        answer(response, TaskPageReply(result=0, data=records, pagecount=-(-page.total // query.page_size)))


class TaskEndpoint:
    """POST /v2/timedtaskdetail"""

    def __init__(self, authenticator: Authenticator, tasks: Tasks, zone: ZoneInfo) -> None:
        self._authenticator = authenticator
        self._tasks = tasks
        self._zone = zone

    async def on_post(self, request: Request, response: Response) -> None:
        signed = await self._authenticator.authenticate(request, task_apps)
        appkeys = signed.apps.appkeys
        task = await self._tasks.get(await signed.read(task_key), appkeys)
        answer(response, TaskDetailReply(result=0, data=[task_record(task, appkeys, self._zone)]))


class CancelEndpoint:
    """DELETE /v2/timed"""

    def __init__(self, authenticator: Authenticator, tasks: Tasks) -> None:
        self._authenticator = authenticator
        self._tasks = tasks

    async def on_delete(self, request: Request, response: Response) -> None:
        signed = await self._authenticator.authenticate(request, task_apps)
        await self._tasks.cancel(await signed.read(task_key), signed.apps.appkeys, signed.origin)
        answer(response, Done(result=0, desc="cancel succ"))
