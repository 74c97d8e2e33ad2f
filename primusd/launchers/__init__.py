"""Back ends that run executors: one port, several implementations."""
