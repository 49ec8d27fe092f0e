"""The page of similar submissions: one file, which needs nothing else."""

from collections.abc import Iterable
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from autograder.classroom.similar import Marks, Pair

_STYLE = """
:root { color-scheme: light dark; --line: light-dark(#d6d9de, #3c4149);
  --soft: light-dark(#f6f7f9, #1d2025); --mark: light-dark(#ffe2a8, #6b4a00);
  --text: light-dark(#1f2328, #dfe2e7); --quiet: light-dark(#5a626d, #9aa3ae);
  --link: light-dark(#0b57a4, #7db7f2); --page: light-dark(#ffffff, #15171a); }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 120rem; padding: 1.5rem 2rem 4rem; color: var(--text);
  background: var(--page); font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; margin: 0 0 .3rem; }
p { max-width: 50rem; margin: .3rem 0; color: var(--quiet); }
a { color: var(--link); }
table { border-collapse: collapse; margin: 1.2rem 0 2rem; }
th, td { text-align: left; padding: .3rem 1.2rem .3rem 0; border-bottom: 1px solid var(--line);
  vertical-align: top; }
th { font-weight: 600; }
td:first-child, th:first-child { text-align: right; font-variant-numeric: tabular-nums; }
details { border: 1px solid var(--line); border-radius: .4rem; margin: .8rem 0; }
summary { cursor: pointer; padding: .6rem 1rem; background: var(--soft); border-radius: .4rem; }
summary span { color: var(--quiet); margin-left: .6rem; }
details > div { padding: 0 1rem 1rem; scroll-margin-top: 4rem; }
h2 { display: inline; font-size: 1rem; margin: 0; }
h3 { font-size: .95rem; margin: 1.2rem 0 .3rem; }
h3 span { color: var(--quiet); font-weight: normal; margin-left: .5rem; }
.sides { display: grid; grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 1rem; }
.sides b { font-size: .85rem; font-weight: 600; color: var(--quiet); }
pre { margin: .2rem 0 0; padding: .6rem .8rem; background: var(--soft); overflow-x: auto;
  border-radius: .3rem; font: 13px/1.45 ui-monospace, "DejaVu Sans Mono", Consolas, monospace; }
mark { background: var(--mark); color: inherit; }
"""


def page(assignment: str, count: int, pairs: list["Pair"], listed: float) -> str:
    """Make the page.

    Args:
        assignment: its name.
        count: how many submissions were compared.
        pairs: the pairs to show, the most similar first.
        listed: the share from which a pair is one of them.
    """
    title = f"Similar submissions of {escape(assignment)}"
    if pairs:
        head = "<tr><th>Share</th><th>Students</th><th>In common</th></tr>"
        body = f"<table>{head}{_lines(_row(*item) for item in enumerate(pairs))}</table>"
        body += _lines(_details(*item) for item in enumerate(pairs))
    else:
        body = "<p><b>No pair has that much in common.</b></p>"
    return f"""<!DOCTYPE html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>{title}</title>
<style>{_STYLE}</style>
<h1>{title}</h1>
<p>{count} submissions were compared, each with each. Listed are pairs with {listed:.0%} or more
in common, of all code or of one longer exercise; the share is that of the student more of whose
code stands in the other's. Names, comments, white space and the order of passages do not count, nor
does what the assignment gave.</p>
<p>A high share is a reason to look, not a proof: short solutions of the same equation look alike.
What is <mark>marked</mark> stands in both.</p>
{body}
</html>
"""


def _lines(parts: Iterable[str]) -> str:
    return "\n".join(parts)


def _row(number: int, pair: "Pair") -> str:
    names = f"{escape(pair.left.student)} and {escape(pair.right.student)}"
    return (
        f'<tr><td>{pair.share:.0%}</td><td><a href="#pair-{number}">{names}</a></td>'
        f"<td>{escape(pair.where)}</td></tr>"
    )


def _details(number: int, pair: "Pair") -> str:
    names = [name for name in pair.left.cells if name in pair.right.cells]
    names += [name for work in (pair.left, pair.right) for name in work.cells if name not in names]
    shown = [name for name in names if any(side.get(name) for side in pair.marks)]
    left, right = escape(pair.left.student), escape(pair.right.student)
    return f"""<details{" open" if number == 0 else ""}>
<summary><h2>{left} and {right}</h2><span>{escape(pair.where)}</span></summary>
<div id="pair-{number}">{_lines(_cell(pair, name) for name in shown)}</div>
</details>"""


def _cell(pair: "Pair", name: str) -> str:
    share = f"<span>{pair.shares[name]:.0%} in common</span>" if name in pair.shares else ""
    sides = ""
    for work, marks in zip((pair.left, pair.right), pair.marks, strict=True):
        found = marks.get(name)
        code = f"<pre>{_marked(work.cells[name], found)}</pre>" if found else ""
        sides += f"<div><b>{escape(work.student)}</b>{code}</div>"
    return f'<h3>{escape(name)}{share}</h3>\n<div class="sides">{sides}</div>'


def _marked(text: str, marks: "Marks") -> str:
    """Mark what is in common, line by line and without the white space around it."""
    parts, position = [], 0
    for begin, end in marks:
        parts.append(escape(text[position:begin]))
        for line in text[begin:end].splitlines(keepends=True):
            left = line[: len(line) - len(line.lstrip())]
            core, right = line.strip(), line[len(line.rstrip()) :]
            parts.append(f"{left}<mark>{escape(core)}</mark>{right}" if core else line)
        position = end
    return "".join([*parts, escape(text[position:])])
