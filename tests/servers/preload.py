"""What the fork server imports once, so that each server process starts in a fraction of a second.

Imported in the fork server only: importing openreward takes seconds, and its log level is read at import.
"""

from __future__ import annotations

import os

# Rendering a traceback for a failing request takes longer than the request.
os.environ["OPENREWARD_LOG_LEVEL"] = "CRITICAL"
os.environ["OPENREWARD_DISABLE_UPDATE_CHECK"] = "1"

import aiohttp.web  # noqa: F401  # imported to be there already
import openreward.environments  # noqa: F401  # as above
import uvicorn  # noqa: F401  # as above

__all__: list[str] = []
