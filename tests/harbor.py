"""TRL's `HarborSpec` where there is no container: its rows, its loop and its reward, with a folder for a sandbox."""

from __future__ import annotations

import subprocess
import tomllib
from collections.abc import Mapping
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

__all__ = ["make_harbor_spec"]


def make_harbor_spec(folder: Path, answers: Mapping[str, str]) -> Any:
    """A spec of tasks on disk, in the order of their names.

    Args:
        folder: Where the tasks are written.
        answers: What is to be written into answer.txt, by task. Empty: the task's verifier fails.
    """
    from trl.experimental.harbor import HarborEnv, HarborSpec

    class LocalHarness(HarborEnv):
        """A harness of Harbor's kind; what starts, asks and stops the sandbox is replaced, and no more."""

        _env: Any

        def __del__(self) -> None:
            super().__del__()
            self._loop_thread.join()
            self._loop.close()  # TRL 1.16 leaves it open

        def bash(self, command: str) -> str:
            """Run a command.

            Args:
                command: For the shell.
            """
            return str(self._exec(command))

        def _exec(self, command: str, timeout: int = 180) -> str:
            shell = ["sh", "-c", command]
            done = subprocess.run(shell, cwd=self._env, capture_output=True, text=True, timeout=timeout, check=False)
            return done.stdout + done.stderr

        async def _start(self, task_dir: str) -> str:
            self._env = Path(mkdtemp(dir=folder))
            self._expected, instruction = _read_task(Path(task_dir))
            return instruction

        async def _verify(self) -> float:
            if not self._expected:
                raise TimeoutError("the verifier did not end")

            return float(_read(self._env / "answer.txt") == self._expected)

        async def _stop(self) -> None:
            self._env = None

    for name, answer in answers.items():
        _write_task(folder / "tasks" / name, instruction=f"Answer {name}.", answer=answer)

    return HarborSpec(str(folder), agent=LocalHarness)


def _read(path: Path) -> str:
    return path.read_text()


def _read_task(folder: Path) -> tuple[str, str]:
    settings = tomllib.loads(_read(folder / "task.toml"))
    return settings["metadata"]["gold_answer"], _read(folder / "instruction.md")


def _write_task(folder: Path, *, instruction: str, answer: str) -> None:
    folder.mkdir(parents=True)
    (folder / "instruction.md").write_text(instruction)
    (folder / "task.toml").write_text(f'[metadata]\ngold_answer = "{answer}"\ndifficulty_level = "easy"\n')
