"""The context of one page request, for pages and templates."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal
from zoneinfo import ZoneInfo

import msgspec

from console.shell.access import Requester
from console.shell.languages import Language
from console.shell.sessions import Session, Tokens, padded
from protos.accounts.v1.accounts_pb2 import User

SessionStatus = Literal["current", "due", "over"]
"""Whether a request would be let through again with the same rights.

`current`: it would. `due`: only once the provider says that the user is still logged in there. `over`: it would not.
"""


@dataclass(kw_only=True)
class Visit(Requester):
    """One request for a page: its session and user, and the language and time zone of the answer.

    `session` and `browser_tokens` are written to the browser if they were replaced. `form` holds the fields of a POST,
    whose CSRF token was compared with the session's. `session_status` is for answers that take long.
    """

    session: Session
    browser_tokens: Tokens
    user: User | None
    language: Language
    zone: ZoneInfo
    path: str
    is_fragment: bool = False
    form: dict[str, str] = field(default_factory=dict)
    session_status: Callable[[], SessionStatus] = lambda: "over"

    @property
    def section(self) -> str:
        """The entry of the navigation that the page belongs to."""
        first, _, rest = self.path.strip("/").partition("/")
        within = {
            "send": "send",
            "test-devices": "send",
            "sent": "pushes",
            "pushes": "pushes",
            "device": "devices",
            "why": "why",
        }
        return within.get(rest.split("/")[1], first) if first == "apps" and "/" in rest else first or "overview"

    @property
    def csrf(self) -> str:
        """The CSRF token for a form, with a new pad each time."""
        return padded(self.session.csrf)

    def gettext(self, text: str) -> str:
        return self.language.gettext(text)

    def notify(self, notice: str, shown_once: str = "") -> None:
        """Show this on the next page. `shown_once` is a secret."""
        self.session = msgspec.structs.replace(self.session, notice=notice, shown_once=shown_once)

    def take_notice(self) -> tuple[str, str]:
        """Return the notice and the secret that the page before has left, and forget them."""
        notice, shown_once = self.session.notice, self.session.shown_once
        if notice or shown_once:
            self.session = msgspec.structs.replace(self.session, notice="", shown_once="")
        return notice, shown_once
