"""Limits of calls between roles, the same on both sides."""

DEADLINE_S = 10.0
"""Deadline of a call that names none, seconds."""

_MAX_BYTES = 32 * 1024 * 1024
_MAX_METADATA_BYTES = 64 * 1024
_WINDOW_BYTES = 1024 * 1024
"""Bytes of a stream on their way that the receiver has not read."""

GRPC_LIMITS = [
    ("grpc.max_receive_message_length", _MAX_BYTES),
    ("grpc.max_send_message_length", _MAX_BYTES),
    ("grpc.max_metadata_size", _MAX_METADATA_BYTES),
    ("grpc.absolute_max_metadata_size", _MAX_METADATA_BYTES),
    # gRPC would measure the network by a ping beside each message, and its threads, once woken, look for work again and
    # again for seconds: a third to half of what they take while nothing happens.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", _WINDOW_BYTES),
]
