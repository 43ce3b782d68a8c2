"""Triton kernels between rows and records; `launch.py` compiles and starts them.

`entry.py` has the two that are launched. They walk over tiles of tokens and hand each to its
codec's file: `int8.py`, `ladder.py`, `exact.py`. `window.py` has what all codecs share: how rows
and records are read and written. `bits.py` turns rows into floats and back.

Triton 3.6 takes a member of the constants for a constant in arithmetic and in `tl.arange`, but not
in a shape that is written as a list nor in `tl.static_range`: there it is named first, as in
`ROWS: tl.constexpr = s.rows`.
"""
