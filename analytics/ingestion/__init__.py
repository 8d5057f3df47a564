"""The log into the store, each record exactly once, whenever the process dies.

batch_reader.py ─▶ translation.py (tables/: a row for each record) ─▶ batch_writer.py ─▶ store
attributes.py: what devices were counted under    connections/: numbers of connections by minute
look_ahead.py: one app's outcomes before another's backlog
"""
