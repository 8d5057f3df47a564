"""The names of the audit's actions in the reader's language. Files for programs keep the names themselves."""

from collections.abc import Callable, Mapping


def action_words(gettext: Callable[[str], str]) -> Mapping[str, str]:
    """Return the words for each action of the audit."""
    _ = gettext
    return {
        "push sent": _("sent a push"),
        "push cancelled": _("cancelled a push"),
        "task scheduled": _("scheduled a task"),
        "task cancelled": _("cancelled a task"),
        "draft submitted": _("submitted a draft"),
        "draft changed": _("changed a draft"),
        "draft approved": _("approved a draft"),
        "draft rejected": _("rejected a draft"),
        "draft withdrawn": _("withdrew a draft"),
        "device revoke key": _("revoked the key of a device"),
        "device revoke all keys": _("revoked the keys of all devices of an app"),
        "device remove": _("removed a device"),
        "data read": _("looked at devices"),
        "app created": _("registered an app"),
        "app set": _("changed an app"),
        "app secret rotated": _("made another secret key"),
        "app paused": _("paused an app"),
        "app resumed": _("resumed an app"),
        "app all paused": _("paused all apps"),
        "app all resumed": _("resumed all apps"),
        "app given to team": _("gave an app to a team"),
        "app taken from team": _("took an app from its team"),
        "team created": _("created a team"),
        "team set": _("changed a team"),
        "team member set": _("set the role of a member"),
        "team member removed": _("removed a member"),
        "team test device set": _("set test devices"),
        "team test device removed": _("removed test devices"),
        "user created": _("created a user"),
        "user set": _("changed a user"),
        "user password set": _("set a password"),
        "user one-time code set": _("set up a second factor"),
        "user one-time code removed": _("removed a second factor"),
        "user link made": _("made a one-time link"),
        "token created": _("created an API token"),
        "token revoked": _("revoked an API token"),
        "token used": _("used an API token"),
        "log-in": _("logged in"),
        "log-in failed": _("failed to log in"),
        "log-in ended": _("logged out"),
    }
