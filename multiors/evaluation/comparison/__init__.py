"""How a comparison, an evaluation and a training are shown; what regressed is said first.

The files read in the order of the data: `visible` and `wording` (texts and numbers), `sheets` (what is said, in which
order), `text` (terminal and Markdown), `charts` and `transcripts` (what a page shows beside), `html` and `training`
(the pages), `pictures` (for papers). Nothing is computed here that a decision rests on.
"""

from __future__ import annotations

from multiors.evaluation.comparison.html import to_html, write_page
from multiors.evaluation.comparison.text import print_result, to_markdown, to_text

__all__ = ["print_result", "to_html", "to_markdown", "to_text", "write_page"]
