"""Commands of operators, one module for each noun: app, team, user, device, push, audit, keys, backup and others."""
