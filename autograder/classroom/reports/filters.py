"""The filters of nbgrader's pages, with bounds: what takes too long is shown as plain text.

The time to read Markdown, HTML or code can grow with the square of its length.
"""

import time
from collections.abc import Callable

from jinja2 import pass_context
from jinja2.runtime import Context
from markupsafe import escape
from nbconvert import filters

from autograder.bounded import bounded_time
from autograder.classroom.reports import formulas, safety
from autograder.classroom.reports.left import left_for

SECONDS = 5.0  # of the processor's time, for one cell or output; an honest one takes .1


@pass_context
def markdown2html(context: Context, source: str) -> str:
    """Turn Markdown into harmless HTML."""
    return _bounded(context, lambda text: formulas.markdown2html(context, text), source)


@pass_context
def clean_html(context: Context, text: str | bytes) -> str:
    """Make HTML harmless."""
    return _bounded(context, safety.clean_html, text)


@pass_context
def highlight_code(
    context: Context, source: str, language: str | None = None, metadata: dict | None = None
) -> str:
    """Colour code."""
    return _bounded(context, filters.Highlight2HTML(pygments_lexer="ipython3"), source)


@pass_context
def ansi2html(context: Context, text: str) -> str:
    """Colour what a cell has printed."""
    return _bounded(context, filters.ansi2html, text)


def strip_files_prefix(text: str) -> str:
    """Leave a text as it is, in place of nbconvert's filter: no link leads to files here."""
    return text


def _bounded(context: Context, render: Callable[[str], str], text: str | bytes) -> str:
    """Turn a text into HTML within what is left for its page; what fails is shown as it is."""
    text = text.decode(errors="replace") if isinstance(text, bytes) else str(text)
    left = left_for(context)
    plain = f"<pre>{escape(text)}</pre>"
    if left.seconds <= 0:
        return plain
    begin = time.process_time()
    try:
        with bounded_time(min(SECONDS, left.seconds)):
            return render(text)
    except Exception:  # one cell must not cost a student all feedback
        return plain
    finally:
        left.seconds -= time.process_time() - begin
