"""Sources: where a stream's units come from."""
