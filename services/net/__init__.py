"""Network code that knows nothing of pushes.

http/        uvicorn with bounds: heads, bodies, idle time, connections
rpc/         gRPC between roles: channels, deadlines, TLS, callers' identities
sockets.py   accepting, open files, shares of addresses
fairness.py  work of many keys, usually apps, served in turn
child.py     a child process: started, checked and started again by its parent
"""
