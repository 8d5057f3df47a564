"""What several roles know about pushes, apps, devices and accounts.

role.py, role_context.py, settings.py     what a role is, and what it is built with
topics.py, command_writer.py, ids.py      the topics, commands into them, ids of what is in them
apps.py, accounts.py, master_key.py       directories and keys that every process follows
device_protocol/                          frames of devices, over WebSocket and HTTP
identity.py, permissions.py, approval.py  who may do what
bitmap_resolver.py, token_resolver.py     audiences, resolved by targeting and by the registry
"""
