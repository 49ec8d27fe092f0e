"""What happens to honest, solved submissions: each must keep the points that it deserves.

Each function changes a notebook (as JSON) in which everything is solved; it returns what the
exercises should get where that is less than all, or bytes to submit in place of the notebook.
"""

import copy
import json

ACCIDENTS = {}
NONE = {"cell_gradient": 0, "init_forget_bias": 0, "gru_step": 0}


def accident(change):
    """Register a submission under the words of its name."""
    ACCIDENTS[change.__name__.replace("_", " ").strip()] = change
    return change


def cell(nb: dict, name: str) -> dict:
    """Find a cell by its name."""
    return next(c for c in nb["cells"] if c["metadata"].get("nbgrader", {}).get("grade_id") == name)


def place(nb: dict, name: str) -> int:
    """Say where a cell is."""
    return nb["cells"].index(cell(nb, name))


def code(source: str) -> dict:
    """Make a cell of a student's own."""
    return {
        "cell_type": "code",
        "id": f"own-{abs(hash(source)) % 10**8}",
        "metadata": {},
        "source": source,
        "outputs": [],
        "execution_count": None,
    }


@accident
def nothing_at_all(nb):
    pass


@accident
def a_graded_cell_copied(nb):
    nb["cells"].append(copy.deepcopy(cell(nb, "check_gru_step")))


@accident
def a_solution_copied_and_the_copy_unsolved(nb):
    stub = copy.deepcopy(cell(nb, "gru_step"))
    stub["source"] = nb["stubs"]["gru_step"]
    nb["cells"].insert(place(nb, "gru_step"), stub)


@accident
def schema_version_2(nb):
    for c in nb["cells"]:
        c["metadata"].get("nbgrader", {}).update(schema_version=2)


@accident
def schema_version_99(nb):
    for c in nb["cells"]:
        c["metadata"].get("nbgrader", {}).update(schema_version=99)


@accident
def points_null(nb):
    cell(nb, "check_gru_step")["metadata"]["nbgrader"]["points"] = None


@accident
def points_raised(nb):
    cell(nb, "check_gru_step")["metadata"]["nbgrader"]["points"] = 1000


@accident
def flags_changed(nb):
    for c in nb["cells"]:
        if meta := c["metadata"].get("nbgrader"):
            meta.update(grade=False, solution=True, locked=False)


@accident
def graded_cells_deleted(nb):
    nb["cells"] = [c for c in nb["cells"] if not c["source"].startswith("check(")]


@accident
def graded_cells_edited(nb):
    for c in nb["cells"]:
        if c["source"].startswith("check("):
            c["source"] = "pass  # it was slow"


@accident
def the_imports_deleted(nb):
    nb["cells"] = [c for c in nb["cells"] if "from course_pkg import" not in c["source"]]


@accident
def the_imports_edited(nb):
    imports = next(c for c in nb["cells"] if "from course_pkg import" in c["source"])
    imports["source"] += "\nimport itertools"
    solution = cell(nb, "cell_gradient")
    solution["source"] = solution["source"].replace("G = ", "next(itertools.count()); G = ")


@accident
def graded_cells_as_text(nb):
    for c in nb["cells"]:
        if c["source"].startswith("check("):
            c["cell_type"] = "markdown"
            del c["outputs"], c["execution_count"]


@accident
def solutions_as_text(nb):
    solution = cell(nb, "gru_step")
    solution["cell_type"] = "raw"
    del solution["outputs"], solution["execution_count"]


@accident
def cells_reversed(nb):
    nb["cells"] = nb["cells"][::-1]


@accident
def two_solutions_merged(nb):
    other = nb["cells"].pop(place(nb, "gru_step"))
    cell(nb, "cell_gradient")["source"] += "\n\n\n" + other["source"]


@accident
def a_graded_cell_merged_with_the_next_solution(nb):
    other = nb["cells"].pop(place(nb, "init_forget_bias"))
    cell(nb, "check_cell_gradient")["source"] += "\n\n" + other["source"]


@accident
def all_code_merged_into_one(nb):
    """Select all, and merge: the first cell has all code, with every experiment and check."""
    merged_code(nb, "\n\n")


@accident
def all_code_merged_by_vs_code(nb):
    merged_code(nb, "\n")


@accident
def all_code_merged_into_the_last(nb):
    merged_code(nb, "\n\n", kept=-1)


@accident
def all_code_of_a_script(nb):
    merged_code(nb, "\n\n\n# In[ ]:\n\n\n")
    metadata_stripped(nb)


def merged_code(nb: dict, between: str, kept: int = 0) -> None:
    """Leave one cell of code, with all that the others had."""
    cells = [c for c in nb["cells"] if c["cell_type"] == "code"]
    cells[kept]["source"] = between.join(c["source"] for c in cells)
    nb["cells"] = [c for c in nb["cells"] if c["cell_type"] != "code" or c is cells[kept]]


@accident
def a_solution_split(nb):
    solution = cell(nb, "gru_step")
    helper = code("def halves(a):\n    return a")
    nb["cells"].insert(place(nb, "gru_step"), helper)
    helper["metadata"] = copy.deepcopy(solution["metadata"])
    solution["source"] = solution["source"].replace("return (1 - z)", "return halves(1 - z)")


@accident
def metadata_stripped(nb):
    for n, c in enumerate(nb["cells"]):
        c["metadata"], c["id"] = {}, f"new-{n}"


@accident
def saved_by_colab(nb):
    nb["metadata"] = {"colab": {"provenance": []}, "kernelspec": {"name": "python3"}}
    nb["nbformat_minor"] = 0
    for n, c in enumerate(nb["cells"]):
        c.pop("id")
        c["metadata"] = {"id": f"Xy{n}zA", "colab": {"base_uri": "https://localhost"}}
        c["source"] = c["source"].splitlines(keepends=True)


@accident
def saved_by_vs_code(nb):
    nb["metadata"]["kernelspec"] = {"display_name": ".venv", "name": "venv", "language": "python"}
    for c in nb["cells"]:
        c["metadata"]["vscode"] = {"languageId": "python"}
        c["source"] = c["source"].replace("\n", "\r\n")


@accident
def saved_by_jupyterlab(nb):
    for c in nb["cells"]:
        c["metadata"] |= {"editable": False, "tags": [], "trusted": True}


@accident
def tags(nb):
    for c in nb["cells"]:
        c["metadata"]["tags"] = ["skip-execution", "raises-exception", "remove-cell"]


@accident
def a_kernel_for_R(nb):
    nb["metadata"] = {"kernelspec": {"name": "ir", "language": "R", "display_name": "R"}}


@accident
def nbformat_3(nb):
    import nbformat

    found = nbformat.from_dict({k: v for k, v in nb.items() if k != "stubs"})
    return json.dumps(nbformat.convert(found, 3)).encode()


@accident
def utf_16(nb):
    return json.dumps(nb, ensure_ascii=False).encode("utf-16")


@accident
def a_byte_order_mark(nb):
    return b"\xef\xbb\xbf" + json.dumps(nb).encode()


@accident
def lone_surrogates(nb):
    nb["cells"].append(code("text = '\ud800'"))


@accident
def magics_and_shell(nb):
    nb["cells"].insert(
        1, code("%matplotlib inline\n!echo hello\nfiles = !ls\n%timeit -n 1 -r 1 1 + 1")
    )
    nb["cells"].insert(2, code("%%bash\ncd / && ls && exit 3"))


@accident
def other_directory(nb):
    nb["cells"].insert(1, code("import os\nos.chdir('/')"))


@accident
def a_warning(nb):
    solution = cell(nb, "gru_step")
    first = "    r_x, z_x"
    solution["source"] = solution["source"].replace(
        first,
        "    import sys, warnings; warnings.warn('x'); print('y', file=sys.stderr)\n" + first,
        1,
    )


@accident
def prints(nb):
    solution = cell(nb, "gru_step")
    first = "    r_x, z_x"
    solution["source"] = solution["source"].replace(first, "    print(x.shape, 4.0)\n" + first, 1)


@accident
def a_cell_that_fails(nb):
    nb["cells"].insert(1, code("1 / 0"))


@accident
def a_cell_that_ends_the_kernel(nb):
    nb["cells"].insert(place(nb, "init_forget_bias"), code("import os\nos._exit(1)"))


@accident
def a_solution_that_ends_the_process(nb):
    cell(nb, "gru_step")["source"] = "import os\n\ndef gru_step(*inputs):\n    os._exit(0)"
    return {"gru_step": 0}


@accident
def a_solution_that_ends_the_kernel_at_each_call(nb):
    source = "import os\n\ndef gru_step(*inputs):\n    os.kill(os.getppid(), 9)\n    os._exit(0)"
    cell(nb, "gru_step")["source"] = source
    return {"gru_step": 0}


@accident
def a_solution_with_an_endless_loop(nb):
    loop = "def init_forget_bias(b, value=1.0):\n    while value == 2.5:\n        pass"
    cell(nb, "init_forget_bias")["source"] = loop
    return {"init_forget_bias": 0}


@accident
def a_partly_right_solution(nb):
    solution = cell(nb, "init_forget_bias")
    solution["source"] = solution["source"].replace("value: float = 1.0", "value: float = 3.0")
    return {"init_forget_bias": None}  # more than nothing and less than all


@accident
def a_syntax_error(nb):
    cell(nb, "gru_step")["source"] += "\n\ndef ("
    return {"gru_step": 0}


@accident
def an_unsolved_exercise(nb):
    cell(nb, "gru_step")["source"] = nb["stubs"]["gru_step"]
    return {"gru_step": 0}


@accident
def numpy_as_result(nb):
    source = cell(nb, "cell_gradient")
    source["source"] = "import numpy as np\n\n" + source["source"]


@accident
def invalid_JSON(nb):
    return json.dumps(nb).encode()[:-50]


@accident
def an_empty_file(nb):
    return b""


@accident
def a_list_in_place_of_a_notebook(nb):
    return b"[]"


@accident
def deep_JSON(nb):
    return b"[" * 200_000


@accident
def cells_that_are_none(nb):
    nb["cells"] += [None, 5, {}, {"cell_type": "code"}, {"cell_type": 3, "source": 4}]


@accident
def a_picture_of_nonsense(nb):
    cell(nb, "gru_step")["outputs"] = [{"output_type": "nonsense", "data": 5}]


@accident
def another_notebook(nb):
    nb["cells"] = [code("print('homework of another course')")]
    return NONE


UNREADABLE = {"invalid JSON", "an empty file", "a list in place of a notebook", "deep JSON"}


@accident
def a_loop_that_collects_tensors_without_end(nb):
    cell(nb, "gru_step")["source"] = (
        "def gru_step(x, h, W_x, W_h, b_x, b_h):\n"
        "    t, outputs = 0, []\n"
        "    while t < 5:\n"
        "        outputs.append(torch.cat([x @ W_x.T] * 10_000))\n"
        "    return outputs[-1]"
    )
    return {"gru_step": 0}


@accident
def a_step_that_calls_itself(nb):
    cell(nb, "gru_step")["source"] = (
        "def gru_step(x, h, W_x, W_h, b_x, b_h):\n"
        "    return gru_step(x, gru_step(x, h, W_x, W_h, b_x, b_h), W_x, W_h, b_x, b_h)"
    )
    return {"gru_step": 0}


@accident
def halves_of_characters_in_what_it_says(nb):
    half = "'\\ud800\\0'"
    shown = f"{{'text/plain': {half}, {half}: {half}}}"
    named = f"    raise type({half}.strip(chr(0)), (Exception,), {{}})({half})"
    above = f"from IPython.display import display\ndisplay({shown}, raw=True)\n"
    above += f"print({half})\n\ndef fail():\n{named}\n"
    nb["cells"].insert(1, code(above + "\nfail()"))
    cell(nb, "gru_step")["source"] = "def gru_step(*inputs):\n    fail()"
    return {"gru_step": 0}


@accident
def solutions_that_own_the_settings(nb):
    own = "import logging, sys, warnings\n\nwarnings.simplefilter('error')\n"
    own += "logging.basicConfig(level=10)\ntorch.autograd.set_detect_anomaly(True)\n"
    own += "torch.use_deterministic_algorithms(True)\nid = sum = filter = None"
    nb["cells"].insert(2, code(own))


@accident
def a_step_in_numpy(nb):
    solution = cell(nb, "gru_step")
    head, _, body = solution["source"].rpartition("    return ")
    solution["source"] = f"{head}    h_t = {body}\n    return h_t.numpy(force=True)"
    return {"gru_step": None}  # all but the gradients


@accident
def a_comparison_with_torchs_cell(nb):
    source = "x, h = torch.randn(2, 3), torch.randn(2, 4)\ncell = torch.nn.GRUCell(3, 4)\n"
    source += "a, W_x = cell(x, h), cell.weight_ih\n"
    source += "print(gru_step(x, h, W_x, cell.weight_hh, cell.bias_ih, cell.bias_hh) - a)"
    nb["cells"].insert(place(nb, "gru_step") + 1, code(source))
