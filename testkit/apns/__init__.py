"""What Apple issues: keys of teams and tokens of devices."""
