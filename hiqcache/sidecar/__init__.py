"""Beside each engine: its metrics read when asked for, as `hiqcache_*`, as JSON, as a page.

Nothing here imports torch or SGLang. `address` imports nothing at all, so that the command line
can check its arguments from a bare install; the rest needs the `sidecar` extra.
"""
