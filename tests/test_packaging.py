"""What is built, and that it works where it is installed: the wheel, the sdist, and the wheel that the sdist makes."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.commands import Said

ROOT = Path(__file__).parents[1]

pytestmark = [
    pytest.mark.skipif(
        not (ROOT / "multiors").is_dir(), reason="the source is not here: it is the wheel that is tested"
    ),
    pytest.mark.timeout(300),
]

EXTRAS = {"vllm", "deepspeed", "plots", "quickstart", "reasoning-gym", "peft"}


class Built(NamedTuple):
    """What was built of the tree."""

    wheel: Path
    sdist: Path

    wheel_of_sdist: Path


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Both, with the packages that are installed, so without the internet."""
    folder = tmp_path_factory.mktemp("dist")

    def build(*arguments: object) -> None:
        command = [sys.executable, "-m", "build", "--no-isolation", *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=200, check=False)
        assert 0 == done.returncode, done.stdout + done.stderr

    build("--wheel", "--outdir", folder / "tree", ".")
    build("--outdir", folder / "both", ".")  # the wheel of the sdist
    return Built(
        next((folder / "tree").glob("*.whl")), *(next((folder / "both").glob(f"*{end}")) for end in (".gz", ".whl"))
    )


@pytest.fixture(scope="module")
def files() -> set[str]:
    """Every file of the package, as a wheel names it."""
    return {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "multiors").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def read_wheel(path: Path) -> dict[str, bytes]:
    """What is in a wheel, by name."""
    with zipfile.ZipFile(path) as wheel:
        return {name: wheel.read(name) for name in wheel.namelist()}


@pytest.fixture(scope="module")
def metadata(built: Built) -> Message:
    """What the wheel says of itself."""
    wheel = read_wheel(built.wheel)
    return Parser().parsestr(next(text for name, text in wheel.items() if name.endswith("/METADATA")).decode())


def test_the_wheel_holds_the_package_and_nothing_else(built: Built, files: set[str]) -> None:
    """Every file of it, with templates and the mark of types; no tests, no caches."""
    found = {name for name in read_wheel(built.wheel) if ".dist-info/" not in name}

    assert {"multiors/py.typed", "multiors/__init__.py"} <= files
    assert {"", ".py", ".html", ".css", ".js"} >= {Path(name).suffix for name in files - {"multiors/py.typed"}}
    assert files == found


def test_the_sdist_makes_the_same_wheel(built: Built) -> None:
    """File by file, so who builds from it has what we tested."""
    assert read_wheel(built.wheel) == read_wheel(built.wheel_of_sdist)


def test_the_sdist_holds_what_tests_need(built: Built, files: set[str]) -> None:
    """Sources, tests, pages, examples and benchmarks; nothing that was made by running them."""
    with tarfile.open(built.sdist) as sdist:
        found = {name.partition("/")[2] for name in sdist.getnames()}

    needed = {"pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "Makefile", "mkdocs.yml", "constraints.txt"}
    pages = {path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").glob("*.md")}

    assert set() == (needed | files | pages) - found
    assert {"tests/test_packaging.py", "tests/servers/launch.py"} <= found
    assert [] == [name for name in found if "__pycache__" in name or name.endswith((".pyc", ".egg-info"))]


def test_the_metadata_is_what_an_index_shows(metadata: Message) -> None:
    """Name, license, Python, extras, and the README with links that lead somewhere from there."""
    assert ("multiors", "Apache-2.0", ">=3.11", "text/markdown") == tuple(
        metadata[name] for name in ("Name", "License-Expression", "Requires-Python", "Description-Content-Type")
    )
    assert set(metadata.get_all("Provides-Extra", [])) == EXTRAS
    assert (ROOT / "README.md").read_text(encoding="utf-8").strip() == str(metadata.get_payload()).strip()
    assert [] == [name for name in metadata.get_all("Requires-Dist", []) if "@" in name]


@pytest.fixture(scope="module")
def installed(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel installed into it. Whatever it needs is that of this Python."""
    folder = tmp_path_factory.mktemp("installed")
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
        "--target",
        folder,
        built.wheel,
    ]
    subprocess.run([*map(str, command), "--no-compile"], capture_output=True, timeout=200, check=True)
    return folder


def run_installed(installed: Path, folder: Path, *arguments: str) -> Said:
    """The console script of the installed wheel, run elsewhere."""
    environment = {**os.environ, "PYTHONPATH": str(installed), "OPENREWARD_DISABLE_UPDATE_CHECK": "1"}
    command = [sys.executable, str(installed / "bin/multiors"), *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=folder, env=environment, timeout=200, check=False
    )
    return Said(done.returncode, done.stdout, done.stderr)


def test_the_installed_command_works_elsewhere(installed: Path, metadata: Message, tmp_path: Path) -> None:
    """Its code is that of the wheel."""
    code = "import sys; sys.path.insert(0, sys.argv[1]); import multiors; print(multiors.__file__)"
    command = [sys.executable, "-P", "-c", code, str(installed)]
    where = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=True)
    versions = run_installed(installed, tmp_path, "--version")

    assert Path(where.stdout.strip()).is_relative_to(installed)
    assert Said(0, f"multiors {metadata['Version']}\n", "") == versions


def test_the_installed_package_writes_pages(installed: Path, tmp_path: Path) -> None:
    """Templates of a page are in the wheel."""
    (tmp_path / "trainer_state.json").write_text(
        '{"log_history": [{"step": 1, "env/a/share": 1.0, "rewards/a/mean": 0.5}]}'
    )
    told = run_installed(installed, tmp_path, "report", "trainer_state.json", "--html", "page.html")

    assert (0, "wrote page.html\n") == (told.exit_code, told.err)
    assert "<svg" in (tmp_path / "page.html").read_text(encoding="utf-8")
