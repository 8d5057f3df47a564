"""The log on Apache Kafka. Nothing outside this folder imports aiokafka.

log.py ─▶ producer.py (appends by group commit)   reader.py (reads)   lookups.py (begins, ends, last records)
client.py, security.py: what all clients share    topics.py, users.py: topics, users and ACLs of a cluster
"""
