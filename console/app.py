"""The ASGI application of the console."""

import random
from dataclasses import replace
from typing import Any

import falcon.asgi

from console.account.provider import RETURN_PATH
from console.calls import DOCUMENT_PATH, EVENTS_PATH, CallsDocumentEndpoint, by_path
from console.devices.erasures import ErasureDirectory
from console.oidc.log_ins import ProviderLogIns, ProviderSessions
from console.oidc.provider import Provider
from console.overview.installation import Observer
from console.routes import ROUTES, STATIC_PATH, accesses
from console.send.audience import Audiences
from console.send.composed_pushes import ComposedPushes
from console.send.values import AudienceValues
from console.settings import ROLE_NAME, ConsoleSettings
from console.shell.access import SecondFactors
from console.shell.backend import RoleStubs, SharedAnswers
from console.shell.bearer import BearerAuthenticator
from console.shell.call_problems import ErrorAnswers
from console.shell.calls import CallEndpoint
from console.shell.errors import ErrorPages
from console.shell.feeds import Feeds
from console.shell.languages import Languages
from console.shell.middleware import AccessControl, PageLimiter, releasing_slots
from console.shell.page import Site
from console.shell.renderer import Renderer, Rendering, SlicedRenderer
from console.shell.sessions import Sessions
from console.shell.static_files import StaticFileEndpoint, StaticFiles
from console.webhooks.stream import EventsEndpoint
from edge.core.admission import Origins
from edge.core.parsing.body import Application, BodyTimeout
from edge.core.tasks import BroadcastCancel, TaskCalls
from services.domain.accounts import AccountDirectory
from services.domain.command_writer import CommandWriter
from services.domain.role import RoleContext
from services.domain.token_resolver import TokenAndAliasResolver
from services.process.clock import HangWatch


def console_app(
    settings: ConsoleSettings,
    context: RoleContext,
    accounts: AccountDirectory,
    observer: Observer,
    erasures: ErasureDirectory,
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
        audience_values=AudienceValues(context.peers, settings.partitions),
        tasks=TaskCalls(writer, context.peers, settings.partitions),
        broadcasts=BroadcastCancel(writer, context.peers),
        files=files,
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
        erasures=erasures,
        backup_days=settings.backup_days,
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
    app.add_route(DOCUMENT_PATH, CallsDocumentEndpoint())
    # Programs are answered with what is in the log when they ask.
    unshared = replace(site, roles=roles)
    app.add_route(EVENTS_PATH, EventsEndpoint(unshared))
    for path, calls in by_path().items():
        app.add_route(path, CallEndpoint(unshared, calls))
    return BodyTimeout(releasing_slots(app))


def _provider(settings: ConsoleSettings, context: RoleContext) -> ProviderLogIns | None:
    """Return the log-ins with the OpenID Connect provider, if the settings name one."""
    if not settings.has_provider:
        return None
    provider = Provider(settings, context.clock)
    return ProviderLogIns(settings, provider, context.clock, settings.public_url + RETURN_PATH)
