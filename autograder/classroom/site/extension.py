"""What Sphinx has to learn: formulas as MathML, docstrings that are not reStructuredText."""

import html
import re
import textwrap

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.writers.html5 import HTML5Translator

from autograder.classroom.reports.formulas import mathml

# How Sphinx writes parameters that have a line each.
_PARAMETERS = re.compile(r"<dl>\s*(<dd><em class=\"sig-param\">.*?)</dl>", re.DOTALL)
# Lines that go on, and results with names: each becomes a paragraph.
_CONTINUED = re.compile(r"(?<=\S)\n {8,}(?=\S)")
_NAMED = re.compile(r"(?<=[^\s:])\n {4}\w+: ")
# What napoleon would take for a type: words before a colon in the first line.
_RESULT = re.compile(r"^(Returns:\n {4}(?!\w+: )\S+) ", re.MULTILINE)
_SECTION = re.compile(r"(Args|Attributes|Example|Examples|Raises|Returns|Yields):$")
# What reStructuredText would read as markup, outside of `code`.
_MARKUP = re.compile(r"`[^`]*`|[*|\\]|_(?!\w)|(?<!\w)_")


def setup(app: Sphinx) -> dict:
    """Register what it has to learn; formulas are chosen with html_math_renderer = "mathml"."""
    app.add_html_math_renderer("mathml", (_inline, None), (_block, None))
    app.connect("autodoc-process-docstring", _process, priority=400)  # before napoleon
    app.connect("html-page-context", _mend)
    app.connect("html-page-context", _describe)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _inline(translator: HTML5Translator, node: nodes.math) -> None:
    translator.body.append(_formula(node, "inline"))
    raise nodes.SkipNode


def _block(translator: HTML5Translator, node: nodes.math_block) -> None:
    # One that is wider than a phone scrolls, with the keyboard as well.
    translator.body.append(f'<div class="formula" tabindex="0">{_formula(node, "block")}</div>\n')
    raise nodes.SkipNode


def _formula(node: nodes.Element, display: str) -> str:
    tex = node.astext()
    formula = mathml(tex, display)
    if formula is None:
        logging.getLogger(__name__).warning("no MathML for %s", tex, location=node)
        return f"<code>{html.escape(tex)}</code>"
    return formula


def _mend(app, page, template, context: dict, doctree) -> None:
    """Mend what screen readers stumble over: lists without terms, buttons with a second name."""
    body = context.get("body", "")
    body = body.replace(' aria-label="Toggle hidden content"', "")
    context["body"] = _PARAMETERS.sub(_as_lines, body)


def _describe(app, page, template, context: dict, doctree: nodes.document | None) -> None:
    """Say what a page is about, to search engines and to what shows links to it."""
    first = next(doctree.findall(nodes.paragraph), None) if doctree is not None else None
    words = textwrap.shorten(first.astext(), 200, placeholder=" …") if first else app.config.project
    title = re.sub(r"<[^>]*>", "", context.get("title") or app.config.project)
    tags = {"og:title": html.unescape(title), "og:description": words, "og:type": "website"}
    tags["og:site_name"] = app.config.project
    if app.config.html_baseurl:
        tags["og:url"] = f"{app.config.html_baseurl}{page}.html"
        tags["og:image"] = f"{app.config.html_baseurl}_images/part_2.png"
    lines = [f'<meta name="description" content="{html.escape(words)}"/>']
    lines += [f'<meta property="{k}" content="{html.escape(v)}"/>' for k, v in tags.items()]
    context["metatags"] = "\n".join([context.get("metatags", ""), *lines, ""])


def _as_lines(match: re.Match) -> str:
    lines = match[1].replace("<dd>", '<span class="sig-line">').replace("</dd>", "</span>")
    return f'<span class="sig-lines">{lines}</span>'


def _process(app, what, name, obj, options, lines: list[str]) -> None:
    lines[:] = readable(lines)


def readable(lines: list[str]) -> list[str]:
    """Write a docstring of the course as reStructuredText: equations keep their lines."""
    first = next((n for n, line in enumerate(lines) if _SECTION.match(line)), len(lines))
    found = []
    for paragraph in "\n".join(lines[:first]).split("\n\n"):
        if _is_equation(paragraph):
            found += [".. code-block:: text", ""]
            found += [f"   {line}" for line in paragraph.splitlines()]
        else:
            found += _escaped(paragraph).splitlines()
        found.append("")
    sections = _CONTINUED.sub(" ", "\n".join(lines[first:]))
    sections = _RESULT.sub(r"\1\n    ", sections)
    return found + _escaped(_NAMED.sub(r"\n\g<0>", sections)).splitlines()


def _is_equation(paragraph: str) -> bool:
    return "=" in paragraph and paragraph.rstrip()[-1] not in ".:" and ">>>" not in paragraph


def _escaped(text: str) -> str:
    return _MARKUP.sub(lambda match: match[0] if len(match[0]) > 1 else f"\\{match[0]}", text)
