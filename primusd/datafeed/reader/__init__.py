"""What reads leased ranges ahead of their delivery, within a budget, in the order asked for."""
