"""How rows reach a trainer: its socket or pipe, frames in its layout, and its words back."""
