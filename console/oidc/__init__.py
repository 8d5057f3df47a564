"""Log-in by an OpenID Connect provider (authorization code flow with PKCE)."""
