"""What a cell prints costs the grader little, whatever it is."""

import json
import tracemalloc

import pytest

from autograder.grade.kernel.kernel import LINES, TEXT, Outputs


def message(kind: str, **content) -> dict:
    return {"msg_type": kind, "header": {"msg_type": kind}, "content": content}


FLOODS = {
    "nested lists": message(
        "display_data", data={"text/plain": [[]] * 400_000, "text/html": "<b>bold</b>"}, metadata={}
    ),
    "metadata": message(
        "display_data", data={"text/html": "<b>bold</b>"}, metadata={"x": [[]] * 400_000}
    ),
    "a traceback": message("error", ename="E", evalue="<b>bold</b>", traceback=["x"] * 400_000),
}


@pytest.mark.parametrize("name", FLOODS)
def test_what_no_output_needs_is_not_looked_at(name):
    outputs = Outputs()
    tracemalloc.start()
    try:
        outputs.add(FLOODS[name])
        assert tracemalloc.get_traced_memory()[1] < 20 << 20
    finally:
        tracemalloc.stop()
    (output,) = outputs.found
    assert "<b>bold</b>" in (output.get("evalue"), output.get("data", {}).get("text/html"))
    assert len(output.get("traceback", [])) <= LINES


@pytest.mark.parametrize("data", [None, [], {"text/plain": 3}, {"text/plain": ["x"]}])
def test_malformed_data_brings_nothing_but_an_empty_output(data):
    outputs = Outputs()
    outputs.add(message("display_data", data=data, metadata={}))
    assert all(output.data == {} for output in outputs.found)


def test_a_long_text_is_cut():
    outputs = Outputs()
    outputs.add(message("stream", name="stdout", text="x" * (TEXT + 1)))
    outputs.add(message("stream", name="stdout", text="and more"))
    text = "".join(output.text for output in outputs.found)
    assert text == "x" * TEXT + "\nThe output of this cell was cut here: it is too long.\n"


@pytest.mark.parametrize(
    "half",
    [
        message("stream", name="stdout", text="\ud800"),
        message("error", ename="\ud800", evalue="\ud800", traceback=["\ud800"]),
        message("display_data", data={"text/plain": "\ud800", "\ud800": "\ud800"}),
    ],
)
def test_what_no_file_can_hold_is_replaced(half):
    outputs = Outputs()
    outputs.add(half)
    assert outputs.found
    json.dumps(outputs.found, ensure_ascii=False).encode()
