"""What is read from the file of a notebook, and what is refused."""

import json

import pytest

from autograder.grade.submission import reading
from autograder.grade.submission.reading import Unreadable, read


def notebook(*sources: object, **fields) -> dict:
    cells = [{"cell_type": "code", "source": source} for source in sources]
    return {"cells": cells, "nbformat": 4, "nbformat_minor": 5, **fields}


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-be", "utf-32-le"])
def test_encodings(encoding):
    text = json.dumps(notebook("σ = '√✓😀'"), ensure_ascii=False)
    found = read(text.encode(encoding))
    assert [cell.source for cell in found.cells] == ["σ = '√✓😀'"] and found.doubts == []


def test_an_old_encoding():
    text = json.dumps(notebook("# café"), ensure_ascii=False)
    assert read(text.encode("cp1252")).cells[0].source == "# café"


def test_a_damaged_byte_costs_only_itself():
    data = json.dumps(notebook("σ = 1", "# √ X"), ensure_ascii=False).encode()
    found = read(data.replace(b"X", b"\xff"))
    assert [cell.source for cell in found.cells] == ["σ = 1", "# √ \ufffd"]
    assert found.doubts == ["some characters of its cells cannot be read"]
    outside = notebook("σ = 1", metadata={"note": "X"})
    data = json.dumps(outside, ensure_ascii=False).encode().replace(b"X", b"\xff")
    assert read(data).doubts == []


@pytest.mark.parametrize("minor", range(6))
@pytest.mark.parametrize("metadata", [None, [], "text", {"kernelspec": None}])
def test_minor_versions_and_odd_metadata(minor, metadata):
    found = read(json.dumps(notebook("x = 1", nbformat_minor=minor, metadata=metadata)).encode())
    assert [cell.source for cell in found.cells] == ["x = 1"]


@pytest.mark.parametrize("source", [["x = ", None, 5, "1"], ["x = 1"], "x = 1"])
def test_sources(source):
    assert read(json.dumps(notebook(source)).encode()).cells[0].source == "x = 1"


def test_pictures_do_not_stay_in_memory():
    found = notebook("x = 1")
    found["cells"][0]["outputs"] = [{"data": {"image/png": "A" * 1000}}]
    assert "AAA" not in repr(read(json.dumps(found).encode()))


def test_too_many_parts(monkeypatch):
    monkeypatch.setattr(reading, "PARTS", 1000)
    with pytest.raises(Unreadable, match="too many parts"):
        read(b"[" + b"[]," * 1000 + b"0]")
    assert read(json.dumps(notebook("x" * 10_000)).encode()).doubts == []


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b" \n", "missing, or an empty file"),
        (b"<<<<<<< HEAD\n{}", "not JSON"),
        (b'{"cells": null}', "not a notebook"),
        (b'{"cells": {"a": 1}}', "not a notebook"),
        (b'{"worksheets": [', "not JSON"),
        (b'{"worksheets": [' * 5000 + b"]}" * 5000, "not JSON"),
        (b"\x00\x01\x02", "not JSON"),
    ],
)
def test_refused(data, reason):
    with pytest.raises(Unreadable, match=reason):
        read(data)
