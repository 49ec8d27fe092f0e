"""What students write is shown as it was, and runs nothing: the HTML of it, without a browser."""

import base64
import os

import nbformat
import pandas
import pytest
from bs4 import BeautifulSoup
from nbconvert.exporters import HTMLExporter
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output, new_raw_cell
from nbgrader.converters import GenerateFeedback
from traitlets.config import PyFileConfigLoader

from autograder.assignment import ROOT
from autograder.classroom.reports import filters
from autograder.classroom.reports.feedback import FeedbackExporter
from autograder.classroom.reports.formulas import markdown2html
from autograder.classroom.reports.left import Left
from autograder.classroom.reports.safety import LETTERS, TAGS, clean_html
from course_pkg import lstm
from course_pkg.checking.registry import find
from course_pkg.checking.runner import run_here
from tests import scripts

PIXEL = "R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7"
ACTIVE = """script iframe frame object embed applet form button input select textarea style link
meta base svg template noscript noembed noframes xmp plaintext title video audio source picture map
area marquee maction annotation-xml mglyph""".split()
CLEANERS = {"html": clean_html, "markdown": lambda source: markdown2html({}, source)}


def parsed(text: str) -> BeautifulSoup:
    return BeautifulSoup(text, "html.parser")


def assert_harmless(part: BeautifulSoup) -> None:
    """Demand that nothing in a part of a page runs, loads or moves."""
    for tag in part.find_all(True):
        assert tag.name not in ACTIVE, tag
        for name, value in tag.attrs.items():
            value = " ".join(value) if isinstance(value, list) else value
            assert not name.startswith("on") and ":" not in name, tag
            assert name not in ("srcset", "action", "formaction", "background", "srcdoc"), tag
            if name == "href":
                assert value.lower().startswith(("https://", "http://", "mailto:", "#")), tag
            if name == "src":
                assert value.startswith("data:image/"), tag
            if name == "style":
                words = ("url", "expression", "position", "binding", "&", "\\")
                assert not [word for word in words if word in value], tag


@pytest.mark.parametrize("kind", CLEANERS)
@pytest.mark.parametrize("name", scripts.HTML)
def test_no_way_to_run_a_script_is_left(name, kind):
    assert_harmless(parsed(CLEANERS[kind](scripts.HTML[name])))


@pytest.mark.parametrize("name", scripts.MARKDOWN)
def test_no_way_to_run_a_script_is_left_in_markdown(name):
    assert_harmless(parsed(markdown2html({}, scripts.MARKDOWN[name])))


@pytest.fixture(scope="module")
def pages() -> dict[str, BeautifulSoup]:
    """A notebook of all attacks, as the formgrader and feedback show it."""
    config = PyFileConfigLoader("nbgrader_config.py", path=str(ROOT)).load_config()
    resources = {
        "nbgrader": {"notebook": "n", "score": 1, "max_score": 2, "late_penalty": 0},
        "course": {"rows": [], "headings": {}, "problem": None},
        **{"index": 0, "total": 1, "base_url": "", "submission_id": "s", "notebook_id": "n"},
        **{"student": scripts.HTML["error"], "last_name": None, "first_name": None},
        "notebook_path": scripts.HTML["end of an attribute"],
    }
    made = {"feedback": FeedbackExporter(config=GenerateFeedback(config=config).config)}
    config.HTMLExporter.template_name = "formgrade"
    made["formgrader"] = HTMLExporter(config=config)
    return {
        name: parsed(exporter.from_notebook_node(notebook(), dict(resources))[0])
        for name, exporter in made.items()
    }


def notebook() -> nbformat.NotebookNode:
    """Every attack, wherever a notebook has a place for it."""
    script, broken = scripts.HTML["script"], scripts.HTML["end of an attribute"]
    attacks = [*scripts.HTML.values(), *scripts.MARKDOWN.values()]
    graded = {"grade": True, "solution": True, "grade_id": "essay", "points": 3, "score": 1}
    cells = [new_markdown_cell(source) for source in attacks]
    cells += [new_raw_cell(source, metadata={"raw_mimetype": "text/html"}) for source in attacks]
    cells += [new_markdown_cell("\n\n".join(attacks), metadata={"nbgrader": graded})]
    cells += [new_code_cell(source) for source in (*attacks, f"%%javascript\n{script}")]
    cells.append(
        new_markdown_cell(
            "![x](attachment:x.gif) ![y](attachment:y.html) ![z](attachment:z)",
            attachments={
                "x.gif": {"image/gif": PIXEL},
                "y.html": {"text/html": base64.b64encode(script.encode()).decode()},
                "z": {f'image/gif"{script}': broken},
            },
        )
    )
    kinds = ("text/html", "text/markdown", "text/latex", "image/svg+xml", "application/javascript")
    kinds += ("image/png", "text/vnd.mermaid", "application/vnd.jupyter.widget-view+json")
    size = {"width": "1 onload=x", "height": "1 onload=x", "alt": broken, "isolated": True}
    outputs = [
        new_output("display_data", data={kind: source}, metadata={kind: size})
        for kind in kinds
        for source in attacks
    ]
    outputs += [
        new_output("stream", name=name, text=f"\x1b[31m{source}")
        for name in ("stdout", "stderr")
        for source in attacks
    ]
    outputs.append(new_output("error", ename=script, evalue=script, traceback=[script, broken]))
    cells.append(new_code_cell("", outputs=outputs, metadata={"tags": [broken], "name": script}))
    for cell in cells:
        cell.metadata["alt"] = broken
    return new_notebook(
        cells=cells,
        metadata={
            "title": f"</title>{script}",
            "language_info": {"name": broken, "pygments_lexer": broken},
            "kernelspec": {"name": broken, "display_name": script},
            "widgets": {"application/vnd.jupyter.widget-state+json": {"a": f"</script>{script}"}},
        },
    )


@pytest.mark.parametrize("name", ["formgrader", "feedback"])
def test_no_place_in_a_notebook_is_forgotten(name, pages):
    page = pages[name]
    cells = page.select_one("#notebook-container")
    assert len(cells.select(".cell")) > 2 * len(scripts.HTML | scripts.MARKDOWN)
    for panel in cells.select(".nbgrader_cell"):  # nbgrader's own buttons
        for own in panel.select(".panel-heading, .panel-footer"):
            own.extract()
    assert_harmless(cells)
    assert page.head.find("meta", {"http-equiv": "Content-Security-Policy"})
    nonces = {script.get("nonce") for script in page.find_all("script")}
    assert len(nonces) == (1 if name == "formgrader" else 0) and None not in nonces
    assert scripts.RAN not in "".join(str(tag) for tag in page.find_all("script"))
    assert scripts.RAN not in str(page.head)


def test_each_page_has_a_nonce_of_its_own(pages):
    config = PyFileConfigLoader("nbgrader_config.py", path=str(ROOT)).load_config()
    step = HTMLExporter(config=config)
    nonces = {step.from_notebook_node(new_notebook())[1]["nonce"] for _ in range(3)}
    assert len(nonces) == 3 and all(len(nonce) > 40 for nonce in nonces)


@pytest.mark.parametrize(
    "attribute",
    [
        *('id="check_gru_step"', 'name="shortcut"', 'data-toggle="x"', 'tabindex="1"'),
        *('class="nbgrader_cell"', 'class="score"', 'class="full-credit"', 'class="k score"'),
        'style="position: fixed; inset: 0; opacity: 0; margin: -9px; z-index: 9; transform: none"',
    ],
)
def test_nothing_passes_for_a_part_of_the_page(attribute):
    for text in (clean_html(f"<b {attribute}>x</b>"), markdown2html({}, f"<b {attribute}>x</b>")):
        (tag,) = parsed(text).find_all("b")
        assert not any(tag.attrs.values())


def test_a_heading_is_not_taken_for_a_cell():
    page = parsed(markdown2html({}, "# check_gru_step\n\n[up](#check_gru_step)"))
    assert page.h1["id"] == "heading-check_gru_step"
    assert [a["href"] for a in page.select("a")] == ["#heading-check_gru_step"] * 2


def test_links_lead_to_other_servers_only_and_in_a_tab_of_their_own():
    page = parsed(markdown2html({}, "[a](https://a.org/?b=1&c=2) [b](plot.html) [c](/formgrader)"))
    first, *others = page.select("a")
    assert first["href"] == "https://a.org/?b=1&c=2" and first["target"] == "_blank"
    assert first["rel"] == ["noopener", "noreferrer"]
    assert [other.attrs for other in others] == [{}, {}]


def test_what_is_harmless_stays_as_it_was():
    text = markdown2html({}, "*a* `b < c`\n\n- d\n\n> e\n\n```python\nif f: pass\n```")
    page = parsed(text)
    assert page.em.text == "a" and page.code.text == "b < c" and page.blockquote.text.strip() == "e"
    assert page.select_one(".highlight .k").text == "if"
    table = parsed(markdown2html({}, "| a |\n|---:|\n| <b>1</b> |"))
    assert table.td.b.text == "1" and "right" in table.td["style"]
    formula = parsed(markdown2html({}, r"$\sqrt{x_1} < \begin{pmatrix} 1 \end{pmatrix}$"))
    assert formula.math.msqrt and formula.math.mtable and "<" in formula.text


def test_tables_of_pandas_stay_tables():
    made = pandas.DataFrame({"loss": [0.5, 0.25]})._repr_html_()
    page = parsed(clean_html(made))
    assert [cell.text for cell in page.select("table.dataframe td")] == ["0.50", "0.25"]
    assert "vertical-align" not in page.text


@pytest.mark.parametrize("solution", [lstm.lstm_step, lambda *args: (0, 0)])
def test_reports_of_checks_stay_as_they_are(solution):
    made = run_here(find("lstm_step"), solution)._repr_html_()
    before, after = parsed(made), parsed(clean_html(made))
    assert after.text == before.text and [t.name for t in after()] == [t.name for t in before()]
    assert "color-mix" in after.span["style"]


@pytest.mark.parametrize("source", ["<b>" * (TAGS + 1), f"<b {'x ' * LETTERS}>"])
def test_what_would_take_minutes_to_read_is_shown_as_text(source):
    page = parsed(clean_html(source))
    assert [tag.name for tag in page()] == ["pre"] and page.pre.text == source


def test_a_large_picture_is_shown():
    picture = f"data:image/png;base64,{'A' * LETTERS * 2}"
    assert parsed(markdown2html({}, f"![x]({picture})")).img["src"] == picture


def test_pictures_are_shown(pages):
    for page in pages.values():
        assert page.select_one(f'img[alt=x][src="data:image/gif;base64,{PIXEL}"]')
    attachment = {"cell": {"attachments": {"a": {"image/svg+xml": "PHN2Zy8+"}}}}
    page = parsed(markdown2html(attachment, "![a](attachment:a)"))
    assert page.img["src"] == "data:image/svg+xml;base64,PHN2Zy8+"


def test_pictures_beside_the_notebook_are_shown_and_others_are_not(tmp_path):
    folder = tmp_path / "submission"
    folder.mkdir()
    for path in (folder / "a.gif", folder / "b.html", tmp_path / "c.gif"):
        path.write_bytes(base64.b64decode(PIXEL))
    context = {"resources": {"metadata": {"path": str(folder)}}}
    page = parsed(markdown2html(context, "![](a.gif) ![](b.html) ![](../c.gif) <img src=a.gif>"))
    sources = [img.get("src") for img in page.select("img")]
    assert sources == [f"data:image/gif;base64,{PIXEL}", None, None, sources[0]]


def test_an_attachment_that_is_missing_costs_only_the_picture():
    for attachments in ({}, {"a": {}}):
        context = {"cell": {"attachments": attachments}}
        assert markdown2html(context, "so ![a <b](attachment:a)") == "<p>so a &lt;b</p>\n"


STRANGE = {
    "none": "![]()",
    "itself": "![a](.)",
    "the root": "![a](/)",
    "a device": '<img src="/dev/zero">',
    "another's": "![a](../other/a.gif)",
    "a long name": f'<img src="{"a" * 5000}">',
    "a zero": '<img src="x\0y">',
    "empty": '<img src="">',
    "no address": '<img alt="a">',
    "a folder": "![a](folder)",
    "a pipe": "![a](pipe)",
}


@pytest.mark.parametrize("name", STRANGE)
def test_the_address_of_a_picture_may_be_anything(tmp_path, name):
    folder = tmp_path / "submission"
    (folder / "folder").mkdir(parents=True)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "a.gif").write_bytes(base64.b64decode(PIXEL))
    os.mkfifo(folder / "pipe")
    context = {"resources": {"metadata": {"path": str(folder)}}}
    for show in (markdown2html, filters.markdown2html):
        page = parsed(show(context, f"before\n\n{STRANGE[name]}\n\nafter"))
        assert page.img is not None and not page.img.get("src")
        assert "before" in page.text and "after" in page.text


def test_a_page_has_so_many_pictures(tmp_path):
    (tmp_path / "a.gif").write_bytes(base64.b64decode(PIXEL))
    left = Left(pictures=3 * len(PIXEL) + 100)
    context = {"resources": {"metadata": {"path": str(tmp_path)}, "course_left": left}}
    page = parsed(markdown2html(context, "![](a.gif) " * 50))
    assert 1 <= sum(bool(img.get("src")) for img in page.select("img")) <= 3
    context["cell"] = {"attachments": {"a": {"image/png": "A" * 1000}}}
    assert not parsed(markdown2html(context, "![](attachment:a)")).img.get("src")


def test_what_cannot_be_shown_is_shown_as_it_is(monkeypatch):
    monkeypatch.setattr(filters.formulas, "markdown2html", lambda *_: 1 / 0)
    assert filters.markdown2html({}, "a < b") == "<pre>a &lt; b</pre>"
