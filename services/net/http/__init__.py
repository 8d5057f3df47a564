"""HTTP listeners of the service: uvicorn behind accept loops that are not uvicorn's.

server.py ─▶ protocol.py (bounds of one connection) ─▶ an ASGI application
    └──────▶ connections.py (how many, and how long idle)     client_address.py (behind proxies)
operations.py: readiness, liveness, metrics
"""
