"""The commands of the command line, one file for what belongs together: options, talk, and what is printed.

What is done is decided elsewhere; here it is asked for and shown. Imports nothing heavy before a command runs, so that
`--help` costs nothing.
"""

from __future__ import annotations

__all__: list[str] = []
