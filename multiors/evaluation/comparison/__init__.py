"""How a comparison, an evaluation and a training are shown; what regressed is said first.

The files read in the order of the data: `visible` and `wording` (texts and numbers), `sheets` (what is said, in which
order), `text` (terminal and Markdown), `charts` and `transcripts` (what a page shows beside), `html` and `training`
(the pages), `pictures` (for papers). Nothing is computed here that a decision rests on.
"""

from __future__ import annotations

from multiors.evaluation.comparison.html import to_html, write_page
from multiors.evaluation.comparison.pictures import draw_distributions, draw_result
from multiors.evaluation.comparison.text import print_result, to_markdown, to_text
from multiors.evaluation.comparison.training import to_training_html

__all__ = [
    "draw_distributions",
    "draw_result",
    "print_result",
    "to_html",
    "to_markdown",
    "to_text",
    "to_training_html",
    "write_page",
]
