"""Feedback fits the width of a phone: what is wider scrolls in its own place."""

from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell

from autograder.assignment import Assignment
from tests import course as toolbox
from tests.course import needs_sandbox

LSTM = Assignment("02_lstm")
WIDE = """\
from IPython.display import HTML, display
import matplotlib.pyplot as plt
print("wide " * 100 + "w" * 300)
display(HTML("<table><tr>" + "<td>a cell of a table</td>" * 30 + "</tr></table>"))
plt.figure(figsize=(20, 2)).gca().plot([1, 2])
"""
TEXT = f"""\
A formula: $${" + ".join(f"x_{{{n}}}" for n in range(100))}$$

| {" | ".join(["a heading"] * 20)} |
| {" | ".join(["---"] * 20)} |
| {" | ".join(["a cell"] * 20)} |

`{"code" * 100}` and https://example.org/{"a" * 300}
"""
pytestmark = [
    pytest.mark.browser,
    pytest.mark.xdist_group("browser-phone"),
    needs_sandbox,
]


@pytest.fixture(scope="module")
def feedback(tmp_path_factory) -> Path:
    """The feedback on a wrong solution, wide outputs and a wide text, with a comment."""
    root = toolbox.new_course(tmp_path_factory.mktemp("phone"), LSTM, toolbox.one_exercise)
    nb = nbformat.read(root / "notebooks" / LSTM.name / f"{LSTM.name}.ipynb", as_version=4)
    for cell in nb.cells:
        if cell.id == "init_forget_bias":
            cell.source = toolbox.RIGHT_BIAS.replace("// 4", "// 8")
    nb.cells += [new_code_cell(WIDE), new_markdown_cell(TEXT)]
    toolbox.submit(root, "ada", LSTM, nb)
    toolbox.nbgrader(root, "autograde", LSTM.name)
    with toolbox.gradebook(root) as book:
        comment = book.find_comment("init_forget_bias", LSTM.name, LSTM.name, "ada")
        comment.manual_comment = "See " + "the_name_of_a_variable" * 10
        book.db.commit()
    toolbox.nbgrader(root, "generate_feedback", LSTM.name)
    return root / toolbox.WORK / "feedback" / "ada" / LSTM.name / f"{LSTM.name}.html"


@pytest.mark.parametrize("width", [320, 390, 700, 1200])
def test_feedback_is_as_wide_as_the_screen(feedback, chromium, width):
    size = {"width": width, "height": 844}
    with chromium.new_context(viewport=size, is_mobile=width < 700) as context:
        page = context.new_page()
        page.goto(feedback.as_uri())
        assert page.evaluate("[window.innerWidth, document.documentElement.scrollWidth]") == [
            width,
            width,
        ]
        assert page.locator("#summary td").first.bounding_box()["width"] > 50
        right = "all => Math.max(...all.map(one => one.getBoundingClientRect().right))"
        assert page.locator("#summary, #summary td, #summary p").evaluate_all(right) <= width
        assert page.locator("img").evaluate_all(right) <= width
