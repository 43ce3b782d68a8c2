"""Triton kernels between rows and records; `launch.py` compiles and starts them.

`entry.py` has the two that are launched. They walk over tiles of tokens and hand each to its
codec's file. `window.py` has what all codecs share: how rows and records are read and written.
"""
