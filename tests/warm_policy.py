"""The quickstart's policy after a short warm start: of its calls some are right, some wrong, and some are none.

For tests in which a model must play. It is warmed up as the quickstart's is, on fewer episodes and for fewer steps.
"""

from __future__ import annotations

import random
from pathlib import Path

from tests.playing import factories

__all__ = ["build_warm_policy"]


def build_warm_policy(folder: Path, url: str, *, num_episodes: int = 24, num_steps: int = 60) -> Path:
    """Save model and tokenizer to the folder.

    Args:
        folder: Where.
        url: A server of the quickstart's four environments.
        num_episodes: Scripted episodes of each.
        num_steps: Steps of the optimizer.
    """
    from multiors import MultiOpenRewardSpec, ORSSource
    from multiors.quickstart.policy import Policy, build_model, build_tokenizer
    from multiors.quickstart.warmstart import SCRIPTS, fit, play, tools_of

    rng = random.Random(0)
    with MultiOpenRewardSpec({name: ORSSource(url, env_name=name) for name in SCRIPTS}) as spec:
        columns = spec.reward_funcs
        environments = {name: factory() for name, factory in factories(spec).items()}
        num_tasks = {source.name: source.num_tasks for source in spec.plan().sources}
        tools = {name: tools_of(environment) for name, environment in environments.items()}
        episodes = [
            play(
                name,
                environment,
                task_index=index % num_tasks[name],
                rng=rng,
                score=lambda played, said: columns(environments=played, completions=said),
            )
            for name, environment in environments.items()
            for index in range(num_episodes)
        ]

    tokenizer = build_tokenizer([episode.messages for episode in episodes], list(tools.values()))
    policy = Policy(build_model(tokenizer, seed=0), tokenizer)
    fit(policy, episodes, tools_by_environment=tools, steps=num_steps, rng=rng)
    policy.save(folder)
    return folder
