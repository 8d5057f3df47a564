"""The simulated network: channels between processes, and streams over them."""
