"""The roles of the service, and the layers that they stand on. Imports run downwards only.

    registry  targeting  scheduling  accounts  delivery  gateway    one role each; they meet in protos and in the log
    domain                                                          what several roles know: topics, keys, apps, rules
    replica                                                         a role's state, folded from the log, and who owns it
    log                                                             the event log: embedded, on Kafka, and archived
    net                                                             HTTP, gRPC, sockets, fairness between apps
    process                                                         clock, logs, metrics, runner, threads
    errors                                                          the tree of errors that callers are answered with

The simulators, such as `apns_simulator`, behave as the push services of Apple, of other vendors and of browsers; they
are the embedded default, and serve tests. What starts the roles is `carillon`.
"""
