"""The security headers of every answer of the console."""

from collections.abc import Sequence

CONTENT_SECURITY_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "connect-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    )
)
"""No inline script or style, and nothing of another host."""

_ALWAYS = (
    ("Content-Security-Policy", CONTENT_SECURITY_POLICY),
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
