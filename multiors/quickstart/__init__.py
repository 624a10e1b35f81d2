"""Everything in one command: four small ORS environments, a tiny policy, and a GRPO run through the public API.

`multiors quickstart` starts two real servers, warms a policy up on scripted episodes, trains it with TRL's
`GRPOTrainer` on all four environments at once and shows what it learned. Nothing here is imported by the library; it
knows the library's public names only, and is meant to be read as an example of their use.
"""

from __future__ import annotations

__all__: list[str] = []
