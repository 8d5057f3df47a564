"""The ASGI application of the console."""

import random
from dataclasses import replace
from typing import Any

import falcon.asgi

from edge.console.access_control.bearer import BearerAuthenticator
from edge.console.access_control.middleware import AccessControl
from edge.console.access_control.page_limiter import PageLimiter, releasing_slots
from edge.console.access_control.second_factors import SecondFactors
from edge.console.access_control.sessions import Sessions
from edge.console.api.document import DocumentEndpoint
from edge.console.api.endpoint import CallEndpoint
from edge.console.api.problems import ErrorAnswers
from edge.console.api.table import DOCUMENT_PATH, by_path
from edge.console.live.feeds import Feeds
from edge.console.live.installation import Observer
from edge.console.oidc.log_ins import ProviderLogIns
from edge.console.oidc.provider import Provider
from edge.console.oidc.renewal import ProviderSessions
from edge.console.pages.errors import ErrorPages
from edge.console.pages.page import Site
from edge.console.pages.provider import RETURN_PATH
from edge.console.role_stubs import RoleStubs
from edge.console.routes import ROUTES, STATIC_PATH, accesses
from edge.console.send.audience import Audiences
from edge.console.send.composed_pushes import ComposedPushes
from edge.console.settings import ROLE_NAME, ConsoleSettings
from edge.console.shared_answers import SharedAnswers
from edge.console.view.languages import Languages
from edge.console.view.renderer import Renderer
from edge.console.view.rendering import Rendering, SlicedRenderer
from edge.console.view.static_files import StaticFileEndpoint, StaticFiles
from edge.core.broadcast_cancel import BroadcastCancel
from edge.core.origins import Origins
from edge.core.parsing.body import Application, BodyTimeout
from edge.core.tasks import Tasks
from services.domain.accounts.directory import AccountDirectory
from services.domain.audiences.token_resolver import TokenAndAliasResolver
from services.domain.command_writer import CommandWriter
from services.domain.role import RoleContext
from services.runtime.process.clock import HangWatch


def console_app(
    settings: ConsoleSettings,
    context: RoleContext,
    accounts: AccountDirectory,
    observer: Observer,
    feeds: Feeds,
    hangs: HangWatch,
) -> Application:
    """Return the application with every route of `routes.py`."""
    files = StaticFiles()
    languages = Languages()
    sessions = Sessions(context.keys, context.clock, is_secure=settings.is_secure)
    renderer = SlicedRenderer(Renderer(files, context.clock))
    resolver = TokenAndAliasResolver(context.peers, settings.partitions)
    roles = RoleStubs.of(context.peers, settings.partitions)
    provider = _provider(settings, context)
    provider_sessions = ProviderSessions(settings, provider, roles, accounts, context.clock) if provider else None
    second_factors = SecondFactors(accounts, settings.console_second_factor)
    writer = CommandWriter(ROLE_NAME, context.log, context.peers, context.clock, settings.partitions)
    shared = SharedAnswers(roles.analytics, context.clock)
    site = Site(
        roles=replace(roles, analytics=shared.stub),
        apps=context.apps,
        accounts=accounts,
        clock=context.clock,
        zone=settings.zone(),
        composed_pushes=ComposedPushes(settings, context, resolver, hangs),
        audiences=Audiences(context.peers, settings.partitions, resolver, random.SystemRandom()),
        tasks=Tasks(writer, context.peers, settings.partitions),
        broadcasts=BroadcastCancel(writer, context.peers),
        sessions=sessions,
        second_factors=second_factors,
        languages=languages,
        gateway_url=settings.gateway_url,
        public_url=settings.public_url,
        v2_url=settings.v2_url,
        provider=provider,
        provider_sessions=provider_sessions,
        provider_name=settings.oidc_display_name,
        only_administrators_have_passwords=settings.only_administrators_have_passwords,
        renderer=renderer,
        observer=observer,
        feeds=feeds,
    )
    access_control = AccessControl(
        accesses(),
        sessions,
        accounts,
        BearerAuthenticator(accounts, context.peers, context.clock, settings.console_calls_per_s),
        languages,
        Origins(ROLE_NAME, settings.client_addresses()),
        settings.zone(),
        provider_sessions,
        second_factors,
        is_secure=settings.is_secure,
        only_administrators_have_passwords=settings.only_administrators_have_passwords,
    )
    errors = ErrorPages(ErrorAnswers())
    app: Any = falcon.asgi.App(middleware=[access_control, PageLimiter(), Rendering(renderer, errors.of_fault), shared])
    errors.add_to(app)
    app.add_route(STATIC_PATH, StaticFileEndpoint(files))
    for path, route in ROUTES.items():
        app.add_route(path, route.page(site))
    app.add_route(DOCUMENT_PATH, DocumentEndpoint())
    # Programs are answered with what is in the log when they ask.
    unshared = replace(site, roles=roles)
    for path, calls in by_path().items():
        app.add_route(path, CallEndpoint(unshared, calls))
    return BodyTimeout(releasing_slots(app))


def _provider(settings: ConsoleSettings, context: RoleContext) -> ProviderLogIns | None:
    """Return the log-ins with the OpenID Connect provider, if the settings name one."""
    if not settings.has_provider:
        return None
    provider = Provider(settings, context.clock)
    return ProviderLogIns(settings, provider, context.clock, settings.public_url + RETURN_PATH)
