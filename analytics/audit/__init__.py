"""Why: the history of a push, a device, an app and an account, each entry with its origin in the log."""
