"""Nothing that a student has written runs where a teaching assistant or a student looks at it."""

import base64
import re
import shutil
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_raw_cell
from playwright.sync_api import Page, expect

from autograder.assignment import Assignment
from tests import course as toolbox
from tests import scripts
from tests.browser.window import Window
from tests.server import ROOT, Server, serving

LSTM = Assignment("02_lstm")
pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("browser"), toolbox.needs_sandbox]
# What each picture, formula, claim and text must look like on every page.
HONEST = """\
import matplotlib.pyplot as plt
from IPython.display import SVG, display
from course_pkg import claim
plt.plot([0, 1])
plt.show()
display(SVG("<svg xmlns='http://www.w3.org/2000/svg' width='40' height='40'><circle r='9'/></svg>"))
claim("the length of the plot", 2, above=1)
check(init_forget_bias)"""
OUTSIDE = "While this notebook is graded, checks run outside of it."
# Point at everything that a student has written, and follow every link there.
TOUCH = """() => {
  for (const tag of document.querySelectorAll(".rendered_html *, .output *")) {
    for (const name of ["mouseover", "pointerenter", "focus", "toggle", "error", "load"])
      tag.dispatchEvent(new Event(name));
    if (!/^https?:/.test(tag.getAttribute("href") ?? "")) tag.click?.();
  }
}"""


@pytest.fixture(scope="module")
def course(tmp_path_factory) -> Path:
    """A course in which a student attacks whoever looks at the submission."""
    root = toolbox.new_course(tmp_path_factory.mktemp("scripts"), LSTM, _few_cells)
    shutil.copy(ROOT / "jupyter_server_config.py", root)
    nb = nbformat.read(root / "notebooks" / LSTM.name / f"{LSTM.name}.ipynb", as_version=4)
    attacks = [*scripts.HTML.values(), *scripts.MARKDOWN.values()]
    for cell in nb.cells:
        if cell.id == "init_forget_bias":
            cell.source = toolbox.RIGHT_BIAS
        if cell.id == "shortcut":
            cell.source = "$c_t = f c_{t-1}$ ![dot](attachment:dot.gif)\n\n" + "\n\n".join(attacks)
            cell.attachments = {"dot.gif": {"image/gif": DOT}}
    nb.cells += [new_code_cell(HONEST), new_code_cell(scripts.displays())]
    nb.cells += [new_markdown_cell(text) for text in attacks]
    nb.cells += [new_raw_cell(text) for text in attacks]
    nb.metadata["title"] = f"</title>{scripts.HTML['script']}"
    toolbox.submit(root, "eve", LSTM, nb)
    folder = root / toolbox.WORK / "submitted" / "eve" / LSTM.name
    (folder / "plot.html").write_text(scripts.HTML["script"])
    (folder / "nbgrader_config.py").write_text(f"open({str(root / 'canary')!r}, 'w')")
    toolbox.nbgrader(root, "autograde", LSTM.name)
    toolbox.nbgrader(root, "generate_feedback", LSTM.name)
    return root


DOT = base64.b64encode(
    b"GIF89a\1\0\1\0\x80\0\0\0\0\0\xff\xff\xff!\xf9\4\1\0\0\0\0,\0\0\0\0\1\0\1\0\0\2\2D\1\0;"
).decode()


def _few_cells(nb: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """Keep one exercise and one question."""
    question = [cell for cell in nb.cells if cell.id == "shortcut"]
    nb = toolbox.one_exercise(nb)
    nb.cells += question
    return nb


@pytest.fixture(scope="module")
def server(course):
    with serving(course) as server:
        yield server


@pytest.fixture
def look(window):
    """Open a page, and record what runs there and what is asked for."""

    def look(address: str, server: Server | None = None, **options) -> tuple[Window, list[str]]:
        opened = window("assistant", **options)
        seen: list[str] = []
        if server is not None:
            opened.page.goto(f"{server.address}/api/me?token={server.token}")
        context = opened.page.context
        context.on("console", lambda message: seen.append(message.text))
        context.on("dialog", lambda dialog: (seen.append(scripts.RAN), dialog.dismiss()))
        context.on("request", lambda request: seen.append(request.url))
        opened.page.goto(address)
        opened.page.wait_for_load_state("networkidle")
        return opened, seen

    return look


def submission(course: Path, server: Server) -> str:
    with toolbox.gradebook(course) as book:
        found = book.find_submission_notebook(LSTM.name, LSTM.name, "eve").id
    return f"{server.address}/formgrader/submissions/{found}/"


def assert_nothing_runs(page: Page, seen: list[str]) -> None:
    page.evaluate(TOUCH)
    page.wait_for_timeout(1000)
    assert not [text for text in seen if scripts.RAN in text or "canary" in text]
    assert len(page.context.pages) == 1


def assert_honest_work_is_shown(page: Page) -> None:
    wide = "all => all.map(one => one.naturalWidth || one.getBoundingClientRect().width)"
    for selector in ("img[src^='data:image/png']", "img[src^='data:image/svg']", "img[alt=dot]"):
        assert min(page.locator(selector).evaluate_all(wide)[:1]) > 0, selector
    assert page.locator(".rendered_html math").first.bounding_box()["width"] > 20
    claim = page.locator(".output_html", has_text=re.compile(r"^\s*✓ the length of the plot: 2"))
    expect(claim).to_be_visible()
    expect(claim.locator("span[style*=color]")).to_have_text("✓")
    expect(page.locator(".output_stdout", has_text=OUTSIDE)).to_be_visible()


# The first line of defence alone, and both.
@pytest.mark.parametrize("bypass_csp", [True, False], ids=["without the policy", "as it is"])
def test_nothing_runs_in_the_formgrader(bypass_csp, course, server, look):
    opened, seen = look(submission(course, server), server, bypass_csp=bypass_csp)
    assert_nothing_runs(opened.page, seen)
    assert_honest_work_is_shown(opened.page)
    assert not opened.elsewhere
    if not bypass_csp:
        assert not [text for text in seen if "Content Security Policy" in text]
    opened.picture("formgrader")


def test_the_formgrader_works(course, server, look):
    opened, _ = look(submission(course, server), server)
    page = opened.page
    page.locator("span.name-hidden").click()
    expect(page.locator("a.name-shown")).to_have_text("eve")
    cell = page.locator(".nbgrader_cell", has=page.locator("#shortcut"))
    expect(cell.locator("input.extra-credit[placeholder]")).to_be_visible()
    cell.locator("input.score").fill("2")
    with page.expect_response(lambda answer: answer.request.method == "PUT" and answer.ok):
        cell.locator("input.score").press("Tab")
    with toolbox.gradebook(course) as book:
        found = book.find_submission_notebook(LSTM.name, LSTM.name, "eve")
        scores = {grade.name: (grade.auto_score, grade.manual_score) for grade in found.grades}
    assert scores == {"check_init_forget_bias": (2, None), "shortcut": (None, 2)}


@pytest.mark.parametrize("bypass_csp", [True, False], ids=["without the policy", "as it is"])
def test_nothing_runs_in_feedback(bypass_csp, course, look):
    path = course / toolbox.WORK / "feedback" / "eve" / LSTM.name / f"{LSTM.name}.html"
    opened, seen = look(path.as_uri(), bypass_csp=bypass_csp)
    assert_nothing_runs(opened.page, [text for text in seen if text != path.as_uri()])
    assert_honest_work_is_shown(opened.page)
    opened.picture("feedback")


@pytest.mark.parametrize("page", ["formgrader", "feedback"])
def test_the_policy_alone_stops_scripts(page, course, server, look):
    """The second line of defence: what a hole in the first one would let through."""
    opened, seen = look("about:blank", server)
    path = course / toolbox.WORK / "feedback" / "eve" / LSTM.name / f"{LSTM.name}.html"
    address = submission(course, server) if page == "formgrader" else path.as_uri()
    leaves = [name for name in scripts.HTML if name.startswith(("meta", "form", "plaintext"))]
    attacks = "\n".join(text for name, text in scripts.HTML.items() if name not in leaves)

    def spoil(route):
        text = route.fetch().text() if page == "formgrader" else path.read_text(encoding="utf-8")
        place = text.index("notebook-container") + len('notebook-container">')
        body = text[:place] + attacks + text[place:]
        route.fulfill(body=body, content_type="text/html; charset=utf-8")

    opened.page.route(address, spoil)
    opened.page.goto(address)
    opened.page.wait_for_timeout(2000)
    assert opened.page.locator("iframe").count()
    opened.page.evaluate(TOUCH)
    opened.page.wait_for_timeout(1000)
    assert not [text for text in seen if text == scripts.RAN]


def test_no_address_acts_as_the_grader(course, server, look):
    """What an answer could lead to: a file of the submission, a configuration, a strange name."""
    place = submission(course, server)
    opened, seen = look(place, server)
    config = f"{toolbox.WORK}/submitted/eve/{LSTM.name}"
    for address in (
        f"{place}plot.html",
        f"{server.address}/formgrader?path={config}",
        f"{server.address}/formgrader/?path={config}",
        f'{server.address}/formgrader/manage_students/";console.log("{scripts.RAN}")%2F%2F',
        f"{server.address}/formgrader/gradebook/<img src=x onerror=console.log('{scripts.RAN}')>",
    ):
        assert opened.page.goto(address).status == 404, address
    assert scripts.RAN not in seen and not (course / "canary").exists()
