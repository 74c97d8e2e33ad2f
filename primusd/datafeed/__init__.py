"""The data feed: sources cut into tasks, leased to readers, every row accounted for."""
