"""WebSocket (RFC 6455), server side: the upgrade, frames, messages and close codes."""
