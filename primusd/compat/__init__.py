"""The original Primus: its job files and what its trainers expect to find in their environment."""
