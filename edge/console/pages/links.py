"""One-time links, with which invited users and the first administrator choose a password."""

import falcon
from falcon.asgi import Request, Response

from edge.console.access_control.visit import Visit
from edge.console.pages.log_in import begin_session
from edge.console.pages.page import Page, go_to, problem_of, visit_of
from protos.accounts.v1.service_pb2 import CheckLinkRequest, UseLinkRequest, UserSummary
from services.runtime.errors import CarillonError, NotFoundError


class LinkPage(Page):
    """GET shows the form for the password; POST sets it, logs the user in and ends the link."""

    async def on_get(self, request: Request, response: Response) -> None:
        token = (request.get_param("token") or "").strip()
        problem = ""
        user: UserSummary | None = None
        if token:
            try:
                user = (await self.site.roles.log_ins.CheckLink(CheckLinkRequest(link_token=token))).user
            except NotFoundError as error:
                problem = problem_of(error, visit_of(request))
            else:
                self._check_may_have_password(visit_of(request), user)
        self.show(
            request, response, "account/link.html", 404 if problem else 200, user=user, token=token, problem=problem
        )

    async def on_post(self, request: Request, response: Response) -> None:
        visit = visit_of(request)
        token, password = visit.form.get("token", ""), visit.form.get("password", "")
        user: UserSummary | None = None
        try:
            user = (await self.site.roles.log_ins.CheckLink(CheckLinkRequest(link_token=token))).user
            self._check_may_have_password(visit, user)
            if password != visit.form.get("repeated", ""):
                problem = visit.gettext("The two passwords differ.")
                self.show(request, response, "account/link.html", 400, user=user, token=token, problem=problem)
                return
            used = UseLinkRequest(link_token=token, new_password=password, origin=visit.origin)
            answer = await self.site.roles.log_ins.UseLink(used)
        except CarillonError as error:
            told = problem_of(error, visit)
            if isinstance(error, NotFoundError):
                self.show(request, response, "account/link.html", 404, user=None, token="", problem=told)
            else:
                self.show(request, response, "account/link.html", 400, user=user, token=token, problem=told)
            return
        await begin_session(self.site, visit, answer.user, browser_token=answer.browser_token)
        visit.notify(visit.gettext("Your password is set, and you are logged in."))
        raise go_to("/" if answer.user.has_totp else "/account/second-factor")

    def _check_may_have_password(self, visit: Visit, user: UserSummary) -> None:
        """HTTP 403: only administrators of the installation log in with a password."""
        if self.site.only_administrators_have_passwords and not user.administrator:
            raise falcon.HTTPForbidden(
                title=visit.gettext("Passwords are for administrators alone"),
                description=visit.gettext("Log in with %(name)s.") % {"name": self.site.provider_name},
            )
