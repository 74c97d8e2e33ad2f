"""Formats: how a unit's bytes become rows, and what a position in it means."""
