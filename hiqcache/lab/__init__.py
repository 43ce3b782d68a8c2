"""The laboratory: what measures HiQCache. It imports the rest, and nothing imports it."""
