"""Storages: where the files of a stream lie, and how their bytes are read."""
