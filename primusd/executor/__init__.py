"""The process beside each trainer: starts it, feeds it, reports for it, outlives the daemon."""
