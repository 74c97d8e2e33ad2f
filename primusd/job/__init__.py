"""What a job is and how it lives: pure values and functions, no IO, no clock."""
