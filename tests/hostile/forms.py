"""Forms that an honest, solved notebook may have: accidents to its cells and to its file."""

import copy
import json

from tests.hostile.accidents import (
    ACCIDENTS,
    NONE,
    accident,
    cell,
    code,
    metadata_stripped,
    place,
)

__all__ = ["ACCIDENTS", "DOUBTFUL"]


def pasted(nb: dict, name: str) -> dict:
    """Leave the stub of an exercise in its cell; give its solution in a new one."""
    solution = cell(nb, name)["source"]
    cell(nb, name)["source"] = nb["stubs"][name]
    return code(solution)


@accident
def a_solution_pasted_at_the_end(nb):
    nb["cells"].append(pasted(nb, "gru_step"))


@accident
def a_solution_pasted_above_its_stub(nb):
    nb["cells"].insert(place(nb, "gru_step"), pasted(nb, "gru_step"))


@accident
def a_solution_pasted_above_all_cells(nb):
    nb["cells"].insert(0, pasted(nb, "gru_step"))


@accident
def a_solution_pasted_into_its_graded_cell(nb):
    graded = cell(nb, "check_gru_step")
    graded["source"] = pasted(nb, "gru_step")["source"] + "\n\n" + graded["source"]


@accident
def a_solution_pasted_with_what_it_needs(nb):
    helper = "def named(function):\n    return function\n\n\nhalf = 0.5"
    solution = pasted(nb, "gru_step")
    solution["source"] = "@named\n" + solution["source"].replace("(1 - z)", "(1 - z) * 2 * half")
    nb["cells"] += [code(helper), solution]


@accident
def a_second_attempt_below_its_check(nb):
    solution = cell(nb, "gru_step")["source"]
    head, _, body = solution.rpartition("    return ")
    cell(nb, "gru_step")["source"] = f"{head}    h_t = {body}\n    return h_t.detach()"
    nb["cells"].append(code(solution))
    return {"gru_step": None}  # as one who runs the cells in order sees


@accident
def a_reset_above_all_cells(nb):
    nb["cells"].insert(0, code("%reset -f\n%matplotlib inline"))


@accident
def the_end_of_the_kernel_below_all_cells(nb):
    nb["cells"] += [code("exit()"), code("import sys\nsys.exit()"), code("%reset -f")]


@accident
def all_solutions_pasted_at_the_end(nb):
    cells = [pasted(nb, name)["source"] for name in NONE]
    nb["cells"].append(code("\n\n\n".join(cells)))


@accident
def all_solutions_pasted_at_the_top(nb):
    cells = [pasted(nb, name)["source"] for name in NONE]
    nb["cells"].insert(1, code("\n\n\n".join(cells)))


@accident
def a_solution_pasted_and_the_metadata_stripped(nb):
    nb["cells"].append(pasted(nb, "gru_step"))
    metadata_stripped(nb)


@accident
def a_solution_pasted_below_an_attempt(nb):
    solution = pasted(nb, "gru_step")
    cell(nb, "gru_step")["source"] = "step = 1\n" + cell(nb, "gru_step")["source"]
    nb["cells"] += [code("def gru_step(*inputs):\n    return inputs[1]"), solution]


@accident
def a_solution_of_another_name_assigned_below(nb):
    solution = pasted(nb, "gru_step")
    solution["source"] = solution["source"].replace("def gru_step", "def step")
    nb["cells"] += [solution, code("gru_step = step")]


@accident
def a_stub_copied_below_its_solution(nb):
    stub = copy.deepcopy(cell(nb, "gru_step"))
    stub["source"] = nb["stubs"]["gru_step"]
    nb["cells"].insert(place(nb, "gru_step") + 1, stub)


@accident
def a_raise_left_below_the_solution(nb):
    cell(nb, "gru_step")["source"] += "\n    raise NotImplementedError()"


@accident
def two_solutions_exchanged(nb):
    a, b = place(nb, "cell_gradient"), place(nb, "gru_step")
    nb["cells"][a], nb["cells"][b] = nb["cells"][b], nb["cells"][a]


@accident
def the_texts_of_two_solutions_exchanged(nb):
    a, b = cell(nb, "cell_gradient"), cell(nb, "gru_step")
    a["source"], b["source"] = b["source"], a["source"]


@accident
def every_cell_copied(nb):
    nb["cells"] = [copy.deepcopy(c) for c in nb["cells"] for _ in range(2)]


@accident
def the_whole_notebook_copied(nb):
    nb["cells"] += copy.deepcopy(nb["cells"])


@accident
def thousands_of_cells_above(nb):
    text = {"cell_type": "markdown", "id": "note", "metadata": {}, "source": "a note"}
    nb["cells"][1:1] = [dict(text) for _ in range(3000)] + [code("")] * 6000


@accident
def names_of_the_course_as_variables(nb):
    names = "globals print list dict torch nn check exit get_ipython course_pkg plot data".split()
    nb["cells"].append(code("\n".join(f"{name} = 5" for name in names)))
    nb["cells"].insert(place(nb, "cell_gradient"), code("globals = print = check = exit = 5"))


@accident
def odd_cell_ids(nb):
    odd = [
        "",
        "x" * 100_000,
        "with space",
        "a/b",
        'it\'s "q"',
        "\u00e9\u2713",
        "../..",
        None,
        5,
        [1],
    ]
    for n, c in enumerate(nb["cells"]):
        c["id"] = odd[n % len(odd)]
    nb["cells"] += [code("1"), code("1")]


@accident
def odd_names(nb):
    for n, name in enumerate(["\ud800", "", None, 5, [], {}, "x" * 100_000, "../..", "gru_step "]):
        own = code(f"own = {n}")
        own["metadata"]["nbgrader"] = {"grade_id": name, "grade": True, "solution": True}
        nb["cells"].append(own)


@accident
def odd_metadata(nb):
    nb["metadata"] = None
    nb["nbformat"], nb["nbformat_minor"] = "four", None
    for n, c in enumerate(nb["cells"]):
        c["metadata"] = [None, [], "text", 5][n % 4]
    nb["cells"].append({**code("1"), "metadata": {"nbgrader": None}})


@accident
def sources_as_lists_with_null(nb):
    for c in nb["cells"]:
        c["source"] = [None, *c["source"].splitlines(keepends=True), None, 5, {}]


@accident
def unknown_kinds_of_cells(nb):
    for c in nb["cells"]:
        c["cell_type"] = "python" if c["cell_type"] == "code" else "text"


@accident
def a_picture_of_half_a_character(nb):
    text = {"cell_type": "markdown", "id": "half", "metadata": {}, "source": "![](attachment:a)"}
    text["attachments"] = {"\ud800": {"image/png": "\ud800", "\ud800": 5}, "b": None}
    nb["cells"].append(text)


@accident
def NaN_in_outputs(nb):
    cell(nb, "gru_step")["outputs"] = [{"output_type": "display_data", "data": float("nan")}]


@accident
def pictures_of_70_MB(nb):
    picture = {
        "output_type": "display_data",
        "metadata": {},
        "data": {"image/png": "A" * (70 << 20)},
    }
    cell(nb, "check_gru_step")["outputs"] = [picture]


@accident
def nbformat_3_with_null(nb):
    nb["worksheets"] = [{"cells": nb.pop("cells")}, {"cells": None}, None]
    nb["nbformat"] = 3
    for c in nb["worksheets"][0]["cells"]:
        if c["cell_type"] == "code":
            c["input"] = [*c.pop("source").splitlines(keepends=True), None]


@accident
def utf_16_without_a_mark(nb):
    return json.dumps(nb, ensure_ascii=False).encode("utf-16-le")


@accident
def utf_32(nb):
    return json.dumps(nb, ensure_ascii=False).encode("utf-32")


@accident
def latin_1(nb):
    nb["cells"].append({"cell_type": "markdown", "source": "caf\u00e9", "metadata": {}})
    text = json.dumps(nb, ensure_ascii=False)
    return text.encode("cp1252", "ignore")


@accident
def carriage_returns(nb):
    for c in nb["cells"]:
        c["source"] = c["source"].replace("\n", "\r")
    return json.dumps(nb, indent=1).replace("\n", "\r\n").encode()


@accident
def zeros_below_the_end(nb):
    return json.dumps(nb).encode() + bytes(4096)


# Nothing is lost, and a person should look all the same.


@accident
def another_text_below_the_end(nb):
    return json.dumps(nb).encode() + b'"outputs": []}]}'


@accident
def damaged_bytes(nb):
    cell(nb, "gru_step")["source"] += "\n# \u221a \u03c3 \u2713 damaged"
    nb["cells"].append(code("\u03c3 = 1\nassert \u03c3 == 1"))
    return json.dumps(nb, ensure_ascii=False).encode().replace(b"damaged", b"dam\xffged")


@accident
def a_very_long_cell(nb):
    nb["cells"].append(code("text = '" + "x" * (2 << 20) + "'"))


@accident
def too_many_cells(nb):
    nb["cells"] += [{"cell_type": "markdown", "source": "a note"} for _ in range(6000)]


DOUBTFUL = {
    "another text below the end": "there is text below the notebook's end",
    "damaged bytes": "some characters of its cells cannot be read",
    "a very long cell": "a cell was cut after 1,048,576 characters",
    "too many cells": "only the first 5000 of",
    "a second attempt below its check": "gru_step is defined again below its check",
    "another notebook": "02_lstm.ipynb holds no cell of this assignment",
}
