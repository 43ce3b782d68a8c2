"""Experiments A, B and the curve: what a smaller record buys, and where it buys nothing."""
