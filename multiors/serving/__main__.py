"""`python -m multiors.serving PLAN`: the process of a server, which `multiors serve` becomes.

Its standard output holds what is served and nothing else: the SDK and environments write to it, so they get the
standard error in its place, before they are loaded.
"""

from __future__ import annotations

import os
import sys
import warnings

from multiors.errors import MultiORSError
from multiors.serving.plan import ServePlan

__all__ = ["main"]


def main(plan: ServePlan) -> int:
    """Serve; the exit code."""
    said = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    warnings.showwarning = _show_warning
    try:
        from multiors.serving.server import serve

        serve(plan, lambda text: os.write(said, text.encode()))
    except MultiORSError as error:
        print(f"multiors serve: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    return 0


def _show_warning(message: Warning | str, category: type[Warning], *_: object, **__: object) -> None:
    print(f"warning: {message}" if category is UserWarning else f"{category.__name__}: {message}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main(ServePlan.from_json(sys.argv[1])))
