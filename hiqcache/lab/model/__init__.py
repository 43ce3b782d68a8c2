"""The demo model: a real language model from the package index, as a local checkpoint."""
