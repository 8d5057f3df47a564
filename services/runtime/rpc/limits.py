"""Limits of calls between roles, the same on both sides."""

DEADLINE_S = 10.0
"""Deadline of a call that names none, seconds."""

_MAX_BYTES = 32 * 1024 * 1024
_MAX_METADATA_BYTES = 64 * 1024
GRPC_LIMITS = [
    ("grpc.max_receive_message_length", _MAX_BYTES),
    ("grpc.max_send_message_length", _MAX_BYTES),
    ("grpc.max_metadata_size", _MAX_METADATA_BYTES),
    ("grpc.absolute_max_metadata_size", _MAX_METADATA_BYTES),
]
