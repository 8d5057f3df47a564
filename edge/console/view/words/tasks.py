"""One sentence about the timed task of a push that has not been sent."""

from collections.abc import Callable

from protos.scheduling.v1.scheduling_pb2 import Task, TaskStatus


def unsent_task_sentence(task: Task, gettext: Callable[[str], str], moment: Callable[[int], str]) -> str:
    """Return the push's due time as text, or why nothing of it was sent."""
    _ = gettext
    match task.status:
        case TaskStatus.TASK_STATUS_CANCELLED:
            sentence = _("Scheduled for %(time)s, and cancelled before: nothing was sent.")
        case TaskStatus.TASK_STATUS_EXPIRED:
            sentence = _("Scheduled for %(time)s, but its time to live ended during a pause: nothing was sent.")
        case TaskStatus.TASK_STATUS_FAILED:
            sentence = _("Scheduled for %(time)s, but it could not be sent.")
        case _:
            sentence = gettext("Scheduled for %(time)s; it has not been sent yet.")
    return sentence % {"time": moment(task.due_ms)}
