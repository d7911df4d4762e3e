"""The lock-step unwinder's rounds as machine code. Where the library is not at hand, NumPy does the same."""

from __future__ import annotations
