"""Calls between roles over gRPC, with the same deadlines and errors in one process and over sockets.

channel.py (a caller's side) ──▶ server.py (a role's side)      local.py: both in one process
calls.py: limits and errors of both sides     tls.py, authority.py, caller.py: callers' identities
clock_sync.py: hosts' clocks compared
"""
