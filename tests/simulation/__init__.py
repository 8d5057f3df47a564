"""The whole service in one process on a seeded event loop, with simulated time, network, disks and faults."""
