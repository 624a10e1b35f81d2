"""The quickstart: three small environments on two servers, a tiny policy, and one GRPO run over all of them.

Uses the public face of multiors only, as a user's script would. `environments` and `servers` are what is trained on,
`policy` and `warmstart` make something that can be trained in minutes, `measure` plays episodes, `report` shows what
came out, and `run` is the whole command.
"""

from __future__ import annotations

__all__: list[str] = []
