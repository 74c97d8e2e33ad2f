"""One per host of the local launcher: forks executors, samples the host, outlives the daemon."""
