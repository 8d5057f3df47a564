"""How messages leave: one folder for each transport, behind the same state and the same outcomes.

sockets/   Carillon's own connections, by gateways
apns/      Apple's push service
"""
