"""The event log: ordered records in partitions of topics, appended in groups and never changed.

    port.py       what every role uses: Log, Reader, Record, Partition
      ├── sqlite/   embedded, one file, written by one process
      ├── kafka/    Apache Kafka; the only code that imports aiokafka
      └── archive/  a log whose oldest records were moved to files or to an S3 bucket
    topics.py     properties of a topic, and the partition of a key
    monitored.py  a log that notes whether appends succeed; point_in_time.py: a log as of an earlier moment

`services.domain.topics` lists the topics of the service.
"""
