"""Markdown as harmless HTML that needs neither scripts nor the network; formulas are MathML."""

import re
from pathlib import Path

from jinja2 import pass_context
from jinja2.runtime import Context
from latex2mathml.converter import convert
from mistune import import_plugin
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath

from autograder.classroom.reports.left import Left, left_for
from autograder.classroom.reports.safety import clean_html

# nbconvert's, without boxes to tick: no element that a person could take for one of the page's.
_PLUGINS = [name for name in MarkdownWithMath.DEFAULT_PLUGINS if name != "task_lists"]
_NAMESPACE = ' xmlns="http://www.w3.org/1998/Math/MathML"'  # HTML needs none, and headings no other
# The bars of a norm grow only where \left and \right say so, as in LaTeX.
_BARS = ("<mo>&#x02016;</mo>", '<mo stretchy="false">&#x02016;</mo>')


def mathml(tex: str, display: str) -> str | None:
    """Turn a formula into MathML; None if it cannot be read.

    Args:
        tex: the formula, without dollars.
        display: "inline" or "block".
    """
    plain = re.sub(r"\\text\{[^{}]*\}", lambda match: match[0].replace(r"\_", "_"), tex)
    try:
        return convert(plain, display=display).replace(_NAMESPACE, "").replace(*_BARS)
    except Exception:  # the converter documents none, and fails in many ways
        return None


@pass_context
def markdown2html(context: Context, source: str) -> str:
    """Turn Markdown into HTML in place of nbconvert's filter of this name; embed its images."""
    renderer = _Renderer(
        escape=False,
        attachments=context.get("cell", {}).get("attachments", {}),
        embed_images=True,
        path=context.get("resources", {}).get("metadata", {}).get("path", ""),
        left=left_for(context),
    )
    plugins = [import_plugin(name) for name in _PLUGINS]
    return clean_html(MarkdownWithMath(renderer=renderer, plugins=plugins).render(source))


class _Renderer(IPythonRenderer):
    """nbconvert's renderer, with formulas as MathML.

    Args:
        left: what the page's pictures may take.
    """

    def __init__(self, *, left: Left, **kwargs):
        super().__init__(**kwargs)
        self._left = left

    def image(self, text: str, url: str, title: str | None = None) -> str:
        """Show a picture, or its description where it is an attachment that is not there."""
        name = url.removeprefix("attachment:")
        if name != url and not self.attachments.get(name):
            return text
        return super().image(text, url, title)

    def _embed_image_or_attachment(self, src: str) -> str:
        """Embed a picture while there is room for it in the page."""
        found = super()._embed_image_or_attachment(src)
        return self._counted(found) if src.startswith("attachment:") else found

    def _src_to_base64(self, src: str) -> str | None:
        """Embed a file of the submission; its address may name anything else."""
        try:
            if not Path(self.path, src).is_file():
                return None
            return self._counted(super()._src_to_base64(src) or "") or None
        except (OSError, ValueError):  # there is no such name
            return None

    def _counted(self, picture: str) -> str:
        """Give the address of a picture; an empty one where the page has too many."""
        self._left.pictures -= len(picture)
        return picture if self._left.pictures >= 0 else ""

    def _html_embed_images(self, html: str) -> str:
        """Leave pieces without a picture alone: nbconvert's would close what a piece opens."""
        return super()._html_embed_images(html) if "<img" in html.lower() else html

    def inline_math(self, body: str) -> str:
        return self._formula(body, "inline")

    def block_math(self, body: str) -> str:
        return self._formula(body, "block")

    def latex_environment(self, name: str, body: str) -> str:
        return self._formula(rf"\begin{{{name}}}{body}\end{{{name}}}", "block")

    def _formula(self, tex: str, display: str) -> str:
        """Convert a formula; one that cannot be read, perhaps a student's, stays as it is."""
        return mathml(tex, display) or f"<code>{self.escape_html(tex)}</code>"
