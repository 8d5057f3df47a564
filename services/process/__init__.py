"""What every process of the service needs: time, logs, metrics, tasks, threads, and its data directory.

`clock.py` is the only source of time, `metrics.py` declares every metric, `runner.py` starts services in order and
stops them in reverse. Nothing here knows the log, the network or pushes.
"""
