"""Formulas as MathML, which browsers draw themselves: without a script and without the network."""

import re

from jinja2 import pass_context
from jinja2.runtime import Context
from latex2mathml.converter import convert
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath

_NAMESPACE = ' xmlns="http://www.w3.org/1998/Math/MathML"'  # HTML needs none, and headings no other


@pass_context
def markdown2html(context: Context, source: str) -> str:
    """Turn Markdown into HTML in place of nbconvert's filter of this name; embed its images."""
    renderer = _Renderer(
        escape=False,
        attachments=context.get("cell", {}).get("attachments", {}),
        embed_images=True,
        path=context.get("resources", {}).get("metadata", {}).get("path", ""),
    )
    return MarkdownWithMath(renderer=renderer).render(source)


class _Renderer(IPythonRenderer):
    """nbconvert's renderer, with formulas as MathML."""

    def inline_math(self, body: str) -> str:
        return self._formula(body, "inline")

    def block_math(self, body: str) -> str:
        return self._formula(body, "block")

    def latex_environment(self, name: str, body: str) -> str:
        return self._formula(rf"\begin{{{name}}}{body}\end{{{name}}}", "block")

    def _formula(self, tex: str, display: str) -> str:
        """Convert a formula; one that cannot be read, perhaps a student's, stays as it is."""
        plain = re.sub(r"\\text\{[^{}]*\}", lambda match: match[0].replace(r"\_", "_"), tex)
        try:
            return convert(plain, display=display).replace(_NAMESPACE, "")
        except Exception:  # the converter documents none, and fails in many ways
            return f"<code>{self.escape_html(tex)}</code>"
