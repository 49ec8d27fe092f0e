"""The pictures of README and of the site: a check that names a mistake, and the block map."""

import io
import random
import re
from dataclasses import replace
from html import escape
from pathlib import Path

import matplotlib
import matplotlib.pyplot as plt
import torch

from autograder.assignment import ROOT
from autograder.author.examination import exercises
from autograder.mistakes import BUGS
from course_pkg.checking.runner import run_here
from course_pkg.checking.telling.report import Report
from course_pkg.engine.requests import EngineConfig, SamplingParams
from course_pkg.inference import block_map
from course_pkg.inference.models import ServedLlama
from course_pkg.llama import Llama
from course_pkg.serving import Engine
from course_pkg.tools import plot
from course_pkg.tools.threads import one_thread

FOLDER = ROOT / "docs" / "pictures"
TOPIC, EXERCISE, MISTAKE = "lstm", "lstm_step", "torch's order"
# GitHub's colours: the ground, a box, its border, text, what is less important, ✓, ✗, the cause.
THEMES = {
    "light": (
        "#ffffff",
        "#f6f8fa",
        "#d1d9e0",
        "#1f2328",
        "#59636e",
        "#1a7f37",
        "#cf222e",
        "#fff1cc",
    ),
    "dark": (
        "#0d1117",
        "#151b23",
        "#3d444d",
        "#f0f6fc",
        "#9198a1",
        "#3fb950",
        "#f85149",
        "#4a3a0b",
    ),
}
BLOCKS = "Memory in blocks: shared, copied when written to, and found again"
MOMENTS = {
    0: "three samples share a prompt",
    10: "five run, sequence 5 waits",
    14: "sequence 4 is back: three are found",
}
_LINE, _LETTER, _WIDTH = 20, 7.9, 700  # pixels
_FONT = "ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace"


def pictures() -> dict[Path, bytes]:
    """Draw all pictures, in a light and in a dark theme."""
    report, moments = named_mistake(), served()
    found = {}
    for theme in THEMES:
        found[FOLDER / f"check_{theme}.svg"] = check_picture(report, theme).encode()
        found[FOLDER / f"blocks_{theme}.svg"] = blocks_picture(moments, theme).encode()
    return found


def named_mistake() -> Report:
    """What the checks in the notebook say of a known mistake."""
    (exercise,) = [each for each in exercises(TOPIC) if each.name == EXERCISE]
    (bug,) = [bug for bug in BUGS[exercise] if MISTAKE in bug.sentence]
    return run_here(exercise, bug.solution)


def check_picture(report: Report, theme: str) -> str:
    """Draw a cell that checks, and the first lines of what it says."""
    ground, box, border, text, less, right, wrong, cause = THEMES[theme]
    lines = shown(report)
    named = next(n for n, line in enumerate(lines) if "Your output equals" in line)
    last = next(n for n, line in enumerate(lines) if n > named and re.search(r"\.$", lines[n - 1]))
    top, left, first = 14, 18, 78
    height = first + _LINE * len(lines) + 4
    drawn = [
        f'<rect x="8" y="8" width="{_WIDTH - 16}" height="34" rx="5" fill="{box}" '
        f'stroke="{border}"/>',
        _words(left, top + 16, [(less, "[7]:"), (text, f"  check({report.exercise.name})")]),
        f'<rect x="{left + 2 * _LETTER - 5:.0f}" y="{first + _LINE * named - 15}" '
        f'width="{80 * _LETTER:.0f}" height="{_LINE * (last - named)}" rx="4" fill="{cause}"/>',
    ]
    for number, line in enumerate(lines):
        colour = {"✓": right, "✗": wrong}.get(line[0])
        parts = [(colour, line[0]), (text, line[1:])] if colour else [(text, line)]
        drawn.append(_words(left, first + _LINE * number, parts))
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" '
            f'width="{_WIDTH}" height="{height}" font-family="{_FONT}" font-size="13">',
            f"<desc>{escape(said(report))}</desc>",
            f'<rect width="100%" height="100%" rx="8" fill="{ground}"/>',
            *drawn,
            "</svg>\n",
        ]
    )


def shown(report: Report) -> list[str]:
    """The lines of a report from its first ✗ to the ✓ that follows."""
    lines = report.text.splitlines()
    failed = next(n for n, line in enumerate(lines) if line.startswith("✗"))
    end = next(n for n, line in enumerate(lines) if n > failed and line.startswith("✓"))
    return lines[failed : end + 1]


def said(report: Report) -> str:
    """Say in a sentence what the picture of a check shows."""
    cause = next(outcome.cause for outcome in report.outcomes if outcome.cause)
    return f"A check of {report.exercise.name} fails and says why: {cause}."


def _words(x: float, y: float, parts: list[tuple[str, str]]) -> str:
    spans = "".join(f'<tspan fill="{colour}">{escape(words)}</tspan>' for colour, words in parts)
    return f'<text x="{x:g}" y="{y}" xml:space="preserve">{spans}</text>'


def served() -> list[block_map.Frame]:
    """Serve six sequences from 24 blocks, too few for all, and keep three moments."""
    numbers = random.Random(0)
    texts = [[numbers.randrange(50) for _ in range(length)] for length in (14, 18, 30)]
    arrivals = {
        0: [(texts[0], SamplingParams(14, n=3, temperature=1.0))],
        4: [(texts[1], SamplingParams(12)), ([*texts[1][:12], 7, 7, 7], SamplingParams(12))],
        8: [(texts[2], SamplingParams(10))],
    }
    with one_thread():
        torch.manual_seed(0)
        model = ServedLlama(Llama(V=50, D=32, H=4, G=2, L=2)).double()
        engine, frames = Engine(model, EngineConfig(num_blocks=24, block_size=4)), []
        for step in range(max(MOMENTS) + 1):
            for prompt, sampling in arrivals.get(step, []):
                engine.add(prompt, sampling)
            engine.step()
            frames.append(block_map.snapshot(engine))
    return [replace(frames[step], title=title) for step, title in MOMENTS.items()]


def blocks_picture(moments: list[block_map.Frame], theme: str) -> str:
    """Draw the block map at some moments."""
    ground, _, border, text, *_ = THEMES[theme]
    plot.style()
    settings = {"svg.fonttype": "none", "svg.hashsalt": "course", "text.color": text}
    settings |= {"font.family": "sans-serif", "figure.facecolor": ground}
    with matplotlib.rc_context(settings):
        figure = block_map.strip(moments, BLOCKS)
        file = io.StringIO()
        figure.savefig(file, format="svg", facecolor=ground, metadata={"Date": None})
        plt.close(figure)
    drawn = file.getvalue()
    if theme == "dark":  # what is free is as the ground, and what is shared has a light border
        drawn = drawn.replace("#ffffff", ground).replace("#c9c9c9", "#656c76")
        drawn = drawn.replace("#b0b0b0", border).replace("#000000", text)
    description = f"<desc>{escape(BLOCKS)}. {escape('; '.join(MOMENTS.values()))}.</desc>"
    return re.sub(r"(<svg [^>]*>)", lambda match: match[0] + description, drawn, count=1)
