"""The pictures of docs/pictures, made of real commands on real servers: `python docs/make_screenshots.py FOLDER`.

A command runs in a terminal of its own, and what the terminal shows is drawn as SVG; the page of a comparison is
photographed in a real browser. FOLDER keeps the run of the quickstart, so that a second call trains nothing. Needs the
dependency groups `test` and `screenshots`.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BytesIO, StringIO
from pathlib import Path

import pyte
from PIL import Image
from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

from tests.browser import open_browser

PICTURES = Path(__file__).parent / "pictures"
MULTIORS = [sys.executable, "-m", "multiors"]
COLUMNS, LINES = 110, 100
Lines = list[list[pyte.screens.Char]]

# Without the fonts of another host, which nobody should have to ask to read a page.
SVG = re.sub(r"@font-face \{\{.*?\}\}\s*", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL).replace(
    "Fira Code, monospace", "ui-monospace, SFMono-Regular, Menlo, Consolas, monospace"
)


def main() -> None:
    """Make all pictures, or those that are named: check (and preview), training, report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("pictures", nargs="*", default=["check", "training", "report"])
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    PICTURES.mkdir(exist_ok=True)

    if "check" in options.pictures:
        with serve(options.folder) as url:
            write_run_file(options.folder, url, museum="musuem")
            draw("check", "check run.yaml --probe", run(options.folder, "check run.yaml --probe")[-1])
            write_run_file(options.folder, url, museum="museum")
            draw("preview", "preview run.yaml", run(options.folder, "preview run.yaml")[-1])

    if "training" in options.pictures:
        screens = run(options.folder, "quickstart --output-dir qs", is_kept=lambda text: "GRPO, " in text)
        draw("training", "quickstart", screens[len(screens) // 2])
        draw("trained", "quickstart", screens[-1])

    if "report" in options.pictures:
        run(options.folder, "compare qs/before qs/after --html report.html")
        photograph(options.folder / "report.html", PICTURES / "report.png")


@contextmanager
def serve(folder: Path) -> Iterator[str]:
    """The quickstart's environments on a server."""
    command = [*MULTIORS, "serve", "quickstart", "--port", "8000", "--json"]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        try:
            yield json.loads(process.stdout.readline())["url"]
        finally:
            process.terminate()


def write_run_file(folder: Path, url: str, *, museum: str) -> None:
    """A mix of four environments, one of which may be named wrongly."""
    names = {"recycling": "recycling", "teahouse": "teahouse", "observatory": "observatory", "museum": museum}
    weights = dict(zip(names, (3, 2, 2, 1), strict=True))
    sources = [
        f"  {name}: {{target: '{url}', env_name: {named}, weight: {weights[name]}}}" for name, named in names.items()
    ]
    training = ["training:", "  max_steps: 100", "  num_generations: 4", "  per_device_train_batch_size: 32"]
    (folder / "run.yaml").write_text("\n".join(["sources:", *sources, *training, ""]), encoding="utf-8")


def run(folder: Path, words: str, *, is_kept: Callable[[str], bool] = lambda text: False) -> list[Lines]:
    """What the terminal of a command shows at the end, behind what it showed meanwhile where that is kept."""
    screen = pyte.Screen(COLUMNS, LINES)
    stream = pyte.ByteStream(screen)
    kept: dict[str, Lines] = {}
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    variables = {
        **os.environ,
        "TERM": "xterm-256color",
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": str(Path(__file__).parent.parent),
    }
    command = [*MULTIORS, *words.split()]

    with subprocess.Popen(
        command, cwd=folder, env=variables, stdin=follower, stdout=follower, stderr=follower
    ) as process:
        os.close(follower)
        while chunk := read(leader):
            stream.feed(chunk)
            text = "\n".join(screen.display)
            if is_kept(text):
                kept.setdefault(text, copy(screen))
        process.wait()

    os.close(leader)
    return [*kept.values(), copy(screen)]


def read(leader: int) -> bytes:
    """What the command writes next; nothing once it has ended."""
    try:
        return os.read(leader, 65536)
    except OSError:  # Linux says so that the other side is closed
        return b""


def copy(screen: pyte.Screen) -> Lines:
    """The characters that a terminal shows, without the blank lines at its end."""
    lines = [[screen.buffer[y][x] for x in range(screen.columns)] for y in range(screen.lines)]
    while lines and not "".join(char.data for char in lines[-1]).strip():
        lines.pop()
    return lines


def draw(name: str, command: str, lines: Lines) -> None:
    """Draw what a terminal shows, below the command that made it."""
    console = Console(record=True, width=COLUMNS, file=StringIO())
    console.print(Text(f"$ multiors {command}", style="bold"))

    for line in lines:
        text = Text()
        for char in line:
            color = "" if char.fg == "default" else char.fg if char.fg.isalpha() else f"#{char.fg}"
            color = {"brown": "yellow"}.get(color, color)
            text.append(char.data, f"{color} {'bold' if char.bold else ''} {'italic' if char.italics else ''}".strip())
        text.rstrip()
        console.print(text, no_wrap=True)

    svg = console.export_svg(title="multiors", theme=MONOKAI, code_format=SVG, unique_id=name)
    (PICTURES / f"{name}.svg").write_text(svg, encoding="utf-8")


def photograph(page: Path, path: Path) -> None:
    """The top of a page, in few colours."""
    with open_browser() as browser:
        browser.open(page, width=1100, height=1150)
        shot = Image.open(BytesIO(browser.driver.get_screenshot_as_png()))

    shot.convert("RGB").quantize(64).save(path, optimize=True)


if __name__ == "__main__":
    main()
