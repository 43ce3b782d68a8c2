"""Commands that measure: one module each, with `add_parser`."""
