"""The security headers of every answer of the console."""

from collections.abc import Sequence
from urllib.parse import urlsplit

POLICY_HEADER = "Content-Security-Policy"


def content_security_policy(socket_url: str = "") -> str:
    """Return the policy: no inline script or style, and nothing of another host but WebSockets to `socket_url`."""
    sockets = urlsplit(socket_url)
    return "; ".join(
        (
            "default-src 'none'",
            "script-src 'self'",
            "style-src 'self'",
            "img-src 'self' data:",
            f"connect-src 'self' {sockets.scheme}://{sockets.netloc}" if socket_url else "connect-src 'self'",
            "form-action 'self'",
            "base-uri 'none'",
            "frame-ancestors 'none'",
        )
    )


_ALWAYS = (
    (POLICY_HEADER, content_security_policy()),
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "DENY"),
    ("Referrer-Policy", "same-origin"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Permissions-Policy", "camera=(), geolocation=(), microphone=()"),
)


def security_headers(*, is_secure: bool) -> Sequence[tuple[str, str]]:
    """Return the headers. `is_secure`: browsers are told to use HTTPS alone for a year."""
    return (*_ALWAYS, ("Strict-Transport-Security", "max-age=31536000")) if is_secure else _ALWAYS
