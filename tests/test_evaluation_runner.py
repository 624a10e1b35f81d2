"""The runner on real servers: limits, deadlines, retries, failures, and what is closed and kept after each ending."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from multiors import MultiOpenRewardSpec, ORSSource, RewardPart, SourceReward, UnscoredReason
from multiors.errors import ConfigError, SourceError
from multiors.evaluation import EvaluationRun, Limits, PolicyError, evaluate, read_evaluation
from multiors.evaluation.policies import Message, Reply, Start
from multiors.ors.sessions.runtime import get_runtime
from multiors.records import RolloutRecord
from tests.evaluated import ScriptedPolicy, calls, count, fail, play, says
from tests.servers.launch import ServerHandle, configured, serve
from tests.servers.raw import serve_raw
from tests.servers.telling import encode_anyhow

R = UnscoredReason


def press(start: Start, messages: list[Message]) -> Reply:
    """Press the button of `Brittle`."""
    return calls(("press", {}))


def which(start: Start, messages: list[Message]) -> Reply:
    """Ask `Large` for the number, then say it."""
    return says("so") if count(messages) else calls(("which", {}))


def reasons(run: EvaluationRun) -> Counter[UnscoredReason | None]:
    """How often each reason occurred."""
    return Counter(record.reason for record in run.episodes())


def assert_all_closed(server: ServerHandle, num_sessions: int | None = None) -> None:
    """Every session that was opened is closed."""
    counts = server.counts()
    opened, deleted = (sum(each.values()) for each in (counts.opened, counts.deleted))

    assert {} == counts.active
    assert opened == deleted
    assert num_sessions in (None, opened)


# -- what is played


def test_each_episode_is_played_once_and_closed(zoo_server: ServerHandle, tmp_path: Path) -> None:
    """One record and one session an episode, of every source, with task, episode and seed."""
    zoo_server.reset_counts()
    sources = {
        "large": ORSSource(zoo_server.url, env_name="large", num_tasks=5, discover_task_tools=False),
        "splits": ORSSource(zoo_server.url, env_name="splits", discover_task_tools=False),
    }

    def ask(start: Start, messages: list[Message]) -> Reply:
        return which(start, messages) if start.source == "large" else calls(("where", {}))

    run = play(sources, ask, tmp_path, episodes_per_task=3, limits=Limits(max_turns=1))
    records = list(run.episodes())

    assert Counter(run.manifest.list_episodes()) == Counter((r.source, r.task_index, r.episode) for r in records)
    assert 3 * (5 + 3) == len({r.seed for r in records}) == len({r.session for r in records})
    assert {1} == {r.num_attempts for r in records}
    assert [None] * 24 == [r.slot for r in records]
    assert_all_closed(zoo_server, 24)


def test_a_policy_is_told_what_an_episode_begins_with(zoo_server: ServerHandle, tmp_path: Path) -> None:
    """The decoded task, the tools as a trainer shows them, and a seed that depends on the episode alone."""
    source = ORSSource(zoo_server.url, env_name="large", num_tasks=4, discover_task_tools=False)
    policies = [ScriptedPolicy(which) for _ in range(2)]

    for number, policy in enumerate(policies):
        evaluate({"large": source}, policy, tmp_path / str(number), episodes_per_task=2, num_tasks=4 - number)

    more, fewer = ({(s.task_index, s.seed): s for s in policy.starts} for policy in policies)
    assert {"id": "large-2", "n": 2} == next(s for s in policies[0].starts if s.task_index == 2).task
    assert ["which"] == [tool["function"]["name"] for tool in policies[0].starts[0].tools]
    assert set(fewer) < set(more)
    assert [(8, 8, 0), (6, 6, 0)] == [(len(p.starts), p.num_ended, p.num_open) for p in policies]


def test_other_tasks_can_be_played_than_are_trained_on(zoo_server: ServerHandle, tmp_path: Path) -> None:
    """Another split has tasks of its own; a number or a list of tasks holds for the source's own split."""
    source = ORSSource(zoo_server.url, env_name="splits", num_tasks=1, discover_task_tools=False)
    answer = calls(("where", {}))
    own, other = (
        play({"s": source}, lambda *_: answer, tmp_path / str(split), split=split, limits=Limits(max_turns=1))
        for split in (None, "hard-v2")
    )

    assert (0,) == own.manifest.sources["s"].tasks
    assert ("hard-v2", (0, 1, 2, 3)) == (other.manifest.sources["s"].split, other.manifest.sources["s"].tasks)
    assert {0.0, 1.0, 2.0, 3.0} == {r.reward for r in other.episodes()}


def test_an_evaluation_goes_on_with_more_tasks_and_episodes(zoo_server: ServerHandle, tmp_path: Path) -> None:
    """Only what is new is played; with less than there is, it is refused before anything is."""
    source = ORSSource(zoo_server.url, env_name="large", num_tasks=50, discover_task_tools=False)
    policy = ScriptedPolicy(which)
    num_played = []

    for num_tasks, episodes_per_task in ((3, 1), (5, 1), (5, 2), (None, 2)):
        evaluate({"s": source}, policy, tmp_path, num_tasks=num_tasks, episodes_per_task=episodes_per_task, seed=7)
        num_played.append(len(policy.starts))

    run = read_evaluation(tmp_path)

    assert [3, 5, 10, 100] == num_played
    assert Counter(run.manifest.list_episodes()) == Counter(
        (record.source, record.task_index, record.episode) for record in run.episodes()
    )
    with pytest.raises(ConfigError, match="had 50 tasks, of which 45 are not among the 5 asked for"):
        evaluate({"s": source}, policy, tmp_path, num_tasks=5, episodes_per_task=2, seed=7)


# -- how long, and how much at once


def test_an_episode_that_takes_too_long_is_truncated(zoo_server: ServerHandle, tmp_path: Path) -> None:
    """Wherever it waits: what was scored before stands, what was not is unscored, and the session is closed."""
    zoo_server.reset_counts()
    source = ORSSource(zoo_server.url, env_name="splits", discover_task_tools=False)

    async def hesitate(start: Start, messages: list[Message]) -> Reply:
        if start.task_index == 0 or count(messages):
            await anyio.sleep_forever()
        return calls(("where", {}))

    run = play({"s": source}, hesitate, tmp_path, limits=Limits(timeout_s=2.0))
    records = sorted(run.episodes(), key=lambda record: record.task_index or 0)

    assert [None, 1.0, 2.0] == [r.reward for r in records]
    assert [R.TRUNCATED, None, None] == [r.reason for r in records]
    assert {"the episode took longer than 2 s"} == {r.error for r in records}
    assert all(r.policy_s is not None and 0 < r.policy_s <= (r.duration_s or 0) for r in records)
    assert_all_closed(zoo_server, 3)


def test_a_tool_that_takes_too_long_truncates_its_episode(tmp_path: Path) -> None:
    """The call is given up, and the session with it."""
    with serve(configured("Slow", TOOL_S=600.0, NUM_TASKS=2)) as server:
        source = ORSSource(server.url, discover_task_tools=False)
        run = play({"slow": source}, lambda *_: calls(("work", {})), tmp_path, limits=Limits(timeout_s=2.0))

        assert Counter({R.TRUNCATED: 2}) == reasons(run)
        assert_all_closed(server, 2)


def test_an_episode_has_so_many_turns(zoo_server: ServerHandle, tmp_path: Path) -> None:
    """Calls beyond the last turn are not made; without turns none is, and the policy is still asked once."""
    source = ORSSource(zoo_server.url, env_name="neverscores", discover_task_tools=False)
    found = {}

    for turns in (0, 1, 3):
        run = play({"s": source}, lambda *_: calls(("look", {})), tmp_path / str(turns), limits=Limits(max_turns=turns))
        (record,) = run.episodes()
        found[turns] = (len(record.steps), count(record.messages, "assistant"), record.reason)

    assert {0: (0, 1, R.TRUNCATED), 1: (1, 2, R.TRUNCATED), 3: (3, 4, R.TRUNCATED)} == found


@pytest.mark.parametrize(
    ("limit", "steps", "reason"),
    [(None, 3, R.NO_SCORE), (100, 3, R.NO_SCORE), (70, 3, R.TRUNCATED), (30, 1, R.TRUNCATED)],
)
def test_an_episode_has_so_many_tokens(
    zoo_server: ServerHandle, tmp_path: Path, limit: int | None, steps: int, reason: UnscoredReason
) -> None:
    """Those after the prompt count, with the tools' answers; a last message that uses them up is cut too."""
    source = ORSSource(zoo_server.url, env_name="neverscores", discover_task_tools=False)

    def look(start: Start, messages: list[Message]) -> Reply:
        turn = count(messages)
        tokens: dict[str, Any] = {"num_prompt_tokens": 1000 + 20 * turn, "num_sampled_tokens": 10}
        return says("so", **tokens) if turn == 3 else calls(("look", {}), **tokens)

    (record,) = play({"s": source}, look, tmp_path, limits=Limits(max_completion_tokens=limit)).episodes()

    assert (steps, reason) == (len(record.steps), record.reason)
    assert (20 * steps + 10, 10 * (steps + 1)) == (record.num_tokens, record.num_sampled_tokens)
    assert sum(1000 + 20 * turn for turn in range(steps + 1)) == record.num_prompt_tokens


def test_a_cut_reply_makes_no_call(zoo_server: ServerHandle, tmp_path: Path) -> None:
    """What a reply that was cut off seems to call is not called; one that cannot be read counts as a call."""
    source = ORSSource(zoo_server.url, env_name="neverscores", discover_task_tools=False)
    replies = {
        "cut": calls(("look", {}), is_truncated=True),
        "malformed": says("look(", malformed_calls=["no closing bracket"]),
    }
    found = {}

    for name, reply in replies.items():
        (record,) = play({"s": source}, lambda *_, reply=reply: reply, tmp_path / name).episodes()
        found[name] = (len(record.steps), record.reason)

    assert {"cut": (0, R.TRUNCATED), "malformed": (0, R.BAD_CALL)} == found


@pytest.mark.parametrize(
    "limits", [{"max_turns": -1}, {"max_turns": True}, {"max_completion_tokens": 0}, {"timeout_s": float("nan")}]
)
def test_limits_that_are_none_are_refused(limits: dict[str, Any]) -> None:
    """Before anything is asked."""
    with pytest.raises(ConfigError, match=f"{next(iter(limits))}="):
        Limits(**limits)


def test_so_many_sessions_at_once_as_are_allowed(tmp_path: Path) -> None:
    """By the source, by the mix, and by who evaluates; the smallest holds."""
    found = {}

    with serve(configured("Slow", TOOL_S=0.02, NUM_TASKS=24)) as server:

        def work(start: Start, messages: list[Message]) -> Reply:
            return calls(("work", {}))

        def measure(name: str, sources: Any, **options: Any) -> None:
            server.reset_counts()
            play(sources, work, tmp_path / name, **options)
            found[name] = server.counts().max_active

        measure("source", {"a": ORSSource(server.url, max_sessions=3)})
        two = {name: ORSSource(server.url, max_sessions=5) for name in "ab"}
        measure("mix", MultiOpenRewardSpec(two, max_sessions=4))
        measure("both", two)
        measure("asked", two, max_concurrent_episodes=2)
        measure("policy", {"a": ORSSource(server.url)})

    assert {"source": 3, "mix": 4, "asked": 2} == {name: found[name] for name in ("source", "mix", "asked")}
    assert 5 < found["both"] <= 10
    assert 12 < found["policy"] <= 24


def test_many_episodes_are_under_way_together(tmp_path: Path) -> None:
    """Episodes that only end together end: none waits for another one's turn."""
    with serve(configured("tests.servers.waiting:Together", SIZE=8)) as server:
        source = ORSSource(server.url, discover_task_tools=False)
        run = play(
            {"s": source},
            lambda _, messages: says("so") if count(messages) else calls(("work", {})),
            tmp_path,
            episodes_per_task=4,
            max_concurrent_episodes=8,
        )

        assert Counter({None: 16}) == reasons(run)


# -- what fails


def test_a_lost_session_is_played_again_and_recorded_once(tmp_path: Path) -> None:
    """In a fresh session, from the beginning; with the attempts it took."""
    with serve_raw(cut="after_task_id", forgets_tasks=True, tasks=[{"id": "r0"}], rewards=("0.5",)) as server:
        source = ORSSource(server.url, discover_task_tools=False)
        policy = ScriptedPolicy(lambda _, messages: says("so") if count(messages) else calls(("act", {"text": "a"})))
        run = evaluate({"raw": source}, policy, tmp_path, episodes_per_task=1)
        (record,) = list(run.episodes())

    assert (0.5, None, 2) == (record.reward, record.reason, record.num_attempts)
    assert [(0, policy.starts[0].seed)] * 2 == [(start.task_index, start.seed) for start in policy.starts]
    assert 2 == policy.num_ended
    assert 1 == len(record.steps)
    assert record.error is None


@pytest.mark.parametrize("retries", [0, 2])
def test_a_session_that_is_lost_each_time_is_unscored(tmp_path: Path, retries: int) -> None:
    """After so many further attempts."""
    with serve_raw(lost_after=0, tasks=[{"id": "r0"}]) as server:
        source = ORSSource(server.url, discover_task_tools=False)
        run = play({"raw": source}, lambda *_: calls(("act", {"text": "a"})), tmp_path, retries=retries)
        (record,) = run.episodes()

    assert (None, R.SESSION_LOST, retries + 1) == (record.reward, record.reason, record.num_attempts)


def test_what_the_environment_itself_does_wrong_is_not_played_again(tmp_path: Path) -> None:
    """Playing until it does not happen would favour the policy that brings it about."""
    with serve(configured("Brittle", NUM_TASKS=4, BROKEN=(1, 3))) as server:
        run = play({"b": ORSSource(server.url, discover_task_tools=False)}, press, tmp_path, retries=3)

        assert Counter({None: 2, R.TOOL_ERROR: 2}) == reasons(run)
        assert {1} == {record.num_attempts for record in run.episodes()}
        assert_all_closed(server, 4)


def test_failed_episodes_are_played_again_on_request(tmp_path: Path) -> None:
    """Nothing is left to play otherwise, and then nobody is asked; what is played again counts once."""
    with serve(configured("Brittle", NUM_TASKS=4, BROKEN=(1, 3))) as server:
        source = ORSSource(server.url, discover_task_tools=False)
        play({"b": source}, press, tmp_path)
        server.reset_counts()
        play({"b": source}, press, tmp_path)
        after_nothing = server.counts().opened
        run = play({"b": source}, press, tmp_path, replay_failed=True)

        assert {} == after_nothing
        assert {"brittle": 2} == server.counts().opened
        assert Counter({None: 2, R.TOOL_ERROR: 2}) == reasons(run)


def test_a_server_that_dies_leaves_its_episodes_unscored(tmp_path: Path) -> None:
    """Those under way and those after; on request they are played when it is back, and the others are not."""
    with serve("Large") as server, serve("Echo") as other:
        sources = {
            "large": ORSSource(server.url, num_tasks=6, discover_task_tools=False, call_timeout_s=5.0, max_sessions=2),
            "echo": ORSSource(other.url, discover_task_tools=False),
        }
        num_asked = 0

        async def ask(start: Start, messages: list[Message]) -> Reply:
            nonlocal num_asked
            if start.source == "echo":
                return says("so") if count(messages) else calls(("echo", {"text": "oak"}))
            num_asked += 1
            if num_asked == 5:
                await anyio.to_thread.run_sync(server.kill)
            return which(start, messages)

        run = play(sources, ask, tmp_path, retries=0)
        broken = [r for r in run.episodes() if r.source == "large" and r.reward is None]
        server.restart()
        again = play(sources, ask, tmp_path, retries=0, replay_failed=True)

    assert 14 == len(list(run.episodes()))
    assert 2 <= len(broken) <= 5
    assert {r.reason for r in broken} <= {R.SESSION_LOST, R.UNREACHABLE}
    assert Counter({None: 14}) == reasons(again)


def test_a_server_that_is_away_is_named_before_anything_is_played(tmp_path: Path) -> None:
    """Nothing is written then."""
    with serve("Echo") as server:
        url = server.url

    with pytest.raises(SourceError, match="source 'echo'"):
        play({"echo": ORSSource(url, open_timeout_s=5.0, retries=0)}, press, tmp_path / "new")

    assert not (tmp_path / "new").exists()


def test_a_policy_that_fails_now_and_then_leaves_episodes_out(zoo_server: ServerHandle, tmp_path: Path) -> None:
    """They are no record, let alone a score; they are counted, and played when the evaluation goes on."""
    zoo_server.reset_counts()
    source = ORSSource(zoo_server.url, env_name="large", num_tasks=12, discover_task_tools=False)

    def sometimes(start: Start, messages: list[Message]) -> Reply:
        return fail() if start.task_index % 3 == 0 and count(messages) else which(start, messages)

    with pytest.raises(PolicyError, match=r"'scripted' gave no reply in 4 episodes.*503.*Run the same"):
        play({"s": source}, sometimes, tmp_path)

    found = {record.task_index for record in read_evaluation(tmp_path).episodes()}
    assert_all_closed(zoo_server, 12)
    policy = ScriptedPolicy(which)
    run = evaluate({"s": source}, policy, tmp_path, episodes_per_task=1)

    assert {n for n in range(12) if n % 3} == found
    assert {0, 3, 6, 9} == {start.task_index for start in policy.starts}
    assert Counter({None: 12}) == reasons(run)


def test_a_policy_that_is_away_ends_the_evaluation(zoo_server: ServerHandle, tmp_path: Path) -> None:
    """After twenty failures with nothing in between; what was played before is kept, all sessions are closed."""
    zoo_server.reset_counts()
    source = ORSSource(zoo_server.url, env_name="large", num_tasks=200, discover_task_tools=False)
    asked: list[int] = []

    def until_it_is_gone(start: Start, messages: list[Message]) -> Reply:
        asked.append(start.task_index)
        return fail() if len(asked) > 20 else which(start, messages)

    policy = ScriptedPolicy(until_it_is_gone)

    with pytest.raises(PolicyError, match=r"gave no reply in 20 episodes in a row.*503.*run the same"):
        evaluate({"s": source}, policy, tmp_path, episodes_per_task=1, max_concurrent_episodes=4)

    assert 8 <= len(list(read_evaluation(tmp_path).episodes())) <= 10
    assert len(asked) <= 20 + 24
    assert (0, len(policy.starts)) == (policy.num_open, policy.num_ended)
    assert_all_closed(zoo_server)


def test_a_reward_function_that_fails_ends_the_evaluation(zoo_server: ServerHandle, tmp_path: Path) -> None:
    """With its own error and the name of the function and the source; sessions are closed."""
    zoo_server.reset_counts()

    def judge(completions: Any, **_: Any) -> list[float]:
        raise ZeroDivisionError("nobody to judge")

    reward = SourceReward(parts=(RewardPart(judge),))
    source = ORSSource(zoo_server.url, env_name="large", num_tasks=8, discover_task_tools=False, reward=reward)

    with pytest.raises(ZeroDivisionError, match="nobody to judge") as raised:
        play({"s": source}, which, tmp_path)

    assert ["in the reward function 'judge' of source 's'"] == raised.value.__notes__
    assert_all_closed(zoo_server)


def test_a_policy_with_a_fault_ends_the_evaluation(zoo_server: ServerHandle, tmp_path: Path) -> None:
    """An error that is no `PolicyError` comes out as it is."""
    zoo_server.reset_counts()
    source = ORSSource(zoo_server.url, env_name="large", num_tasks=8, discover_task_tools=False)
    policy = ScriptedPolicy(lambda start, _: {}[start.task_index])  # type: ignore[index]  # the fault

    with pytest.raises(KeyError):
        evaluate({"s": source}, policy, tmp_path, episodes_per_task=1)

    assert (0, len(policy.starts)) == (policy.num_open, policy.num_ended)
    assert_all_closed(zoo_server)


# -- what is kept, and where


def test_a_watcher_that_waits_holds_up_no_loop(zoo_server: ServerHandle, tmp_path: Path) -> None:
    """Records are handed to the disk and to watchers one at a time, beside the loop that plays."""
    source = ORSSource(zoo_server.url, env_name="large", num_tasks=20, discover_task_tools=False)
    told: list[RolloutRecord] = []

    class Watcher:
        def begin(self, run: EvaluationRun, left: Any) -> None:
            self.num_left = len(left)

        def add(self, record: RolloutRecord) -> None:
            async def beside() -> None:
                told.append(record)

            get_runtime().run(beside)  # where this ran on the loop, it would wait for itself

    watcher = Watcher()
    run = play({"s": source}, which, tmp_path, watcher=watcher)

    assert 20 == watcher.num_left
    assert [r.session for r in run.episodes()] == [r.session for r in told]


def test_many_short_episodes_do_not_wait_for_the_disk_on_the_loop(tmp_path: Path) -> None:
    """More than the log takes at once are over at the same time, and nothing blocks the loop."""
    with serve(configured("tests.servers.waiting:Together", SIZE=100)) as server:
        source = ORSSource(server.url, discover_task_tools=False)
        long = "x" * 200_000
        run = play(
            {"s": source},
            lambda _, messages: says(long) if count(messages) else calls(("work", {})),
            tmp_path,
            episodes_per_task=50,
            max_concurrent_episodes=100,
        )

        assert Counter({None: 200}) == reasons(run)


def test_a_disk_that_takes_nothing_ends_the_evaluation(zoo_server: ServerHandle, tmp_path: Path) -> None:
    """Nobody plays on for hours what is not kept."""
    zoo_server.reset_counts()
    source = ORSSource(zoo_server.url, env_name="large", num_tasks=500, discover_task_tools=False)
    folder = tmp_path / "a"

    def break_the_disk() -> None:
        if folder.is_dir():
            shutil.rmtree(folder)
            folder.touch()

    async def ask(start: Start, messages: list[Message]) -> Reply:
        await anyio.to_thread.run_sync(break_the_disk)
        return which(start, messages)

    with pytest.raises(ConfigError, match=r"could not be written to .*Make room"):
        play({"s": source}, ask, folder, max_concurrent_episodes=1)

    assert_all_closed(zoo_server)
    assert zoo_server.counts().opened["large"] < 500


def test_no_key_of_the_policy_is_in_the_folder(echo_server: ServerHandle, tmp_path: Path) -> None:
    """A policy, or an environment that it can look around in, may say the key of its endpoint."""
    key = "sk-canary-of-the-endpoint"
    policy = ScriptedPolicy(
        lambda _, messages: says(f"My key is {key}.") if count(messages) else calls(("echo", {"text": key}))
    )
    policy.secrets = [key]
    play({"echo": ORSSource(echo_server.url, discover_task_tools=False)}, policy, tmp_path)
    written = "".join(path.read_text(encoding="utf-8") for path in tmp_path.iterdir() if path.is_file())

    assert 0 == written.count(key)
    assert written.count("[redacted]") > 8


def test_no_secret_is_in_the_folder(tmp_path: Path) -> None:
    """Neither as it is nor encoded, though the environment tells it wherever it can."""
    secret = 'canary-"own"/+secret-\u00fc'

    with serve("tests.servers.telling:Telling") as server:
        source = ORSSource(server.url, secrets={"TOKEN": secret}, api_key="canary-key", discover_task_tools=False)

        def tell(start: Start, messages: list[Message]) -> Reply:
            return says("so") if count(messages) else calls(("tell", {"text": "all"}))

        run = play({"t": source}, tell, tmp_path)

    written = "".join(path.read_text(encoding="utf-8") for path in tmp_path.iterdir())
    assert 6 == len(list(run.episodes()))
    assert [] == [word for word in encode_anyhow(secret).split() if len(word) > 12 and word in written]
    assert "canary" not in written
