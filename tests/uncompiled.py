"""The command line with a DeepSpeed that compiles nothing, as `python -m tests.uncompiled`.

On a CPU, DeepSpeed compiles what exchanges tensors over shared memory when a process begins, which takes minutes.
Without it, it exchanges them over gloo.
"""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> int:
    """As `multiors`."""
    from deepspeed.ops import __compatible_ops__

    __compatible_ops__["deepspeed_shm_comm"] = False

    from multiors.cli import main as run_command

    return run_command()


if __name__ == "__main__":
    sys.exit(main())
