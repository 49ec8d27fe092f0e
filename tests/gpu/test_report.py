"""The report of a GPU: what it reads of its steps, how it bounds them, and that all fits."""

import json
import sys
from pathlib import Path

import pytest

from course_pkg.tools import tiles
from tests.gpu import size
from tests.gpu.report import __main__ as report
from tests.gpu.report import plan, rows, tune

SAID = """noise
.ROW {"what": "a", "value": 1.5, "unit": "ms"} [50%]
ROW {"what": "b", "value": "failed", "unit": "", "detail": "why"}
ROW {"what": "c", "val"""


def test_rows_are_read_up_to_where_a_step_was_ended():
    found = rows.read(SAID)
    assert [row["what"] for row in found] == ["a", "b"]
    assert [row["what"] for row in report.failures(found)] == ["b"]


def test_an_attempt_that_fails_says_where_and_goes_on(capsys):
    with rows.attempt("divide"):
        raise ZeroDivisionError
    (found,) = rows.read(capsys.readouterr().out)
    assert found["value"] == "failed" and "ZeroDivisionError" in found["detail"]


@pytest.fixture
def step(monkeypatch, tmp_path):
    """Let a step of the report run some code."""

    def run(code: str, limit: float = 60) -> report.Step:
        made = report.Step("agreement", "A step", 1)
        monkeypatch.setattr(report.sys, "executable", str(_python(tmp_path, code)))
        report.run(made, limit, tmp_path)
        report.write(tmp_path, [made, report.Step("flash", "Not reached", 1)])
        return made

    return run


def _python(folder: Path, code: str) -> Path:
    path = folder / "python"
    path.write_text(f"#!{sys.executable}\n{code}\n", encoding="utf-8")
    path.chmod(0o755)
    return path


def test_a_step_that_hangs_is_ended_and_what_it_said_is_kept(step, tmp_path):
    code = """import time
print('ROW {"what": "first", "value": 2, "unit": "ms", "predicted": 1}', flush=True)
time.sleep(60)"""
    found = step(code, limit=3)
    assert found.words == "ended after its 3 s" and found.seconds < 20
    text = (tmp_path / "report.md").read_text()
    assert "| first | 2 | ms | 1 |" in text and "not reached, 0 s" in text
    known = json.loads((tmp_path / "report.json").read_text())
    assert [each["words"] for each in known["steps"]] == ["ended after its 3 s", "not reached"]


def test_a_step_that_crashes_leaves_its_last_words(step, tmp_path):
    assert step("raise SystemError('no such device')").words == "ended with 1"
    assert "SystemError: no such device" in (tmp_path / "report.md").read_text()


def test_a_step_with_failures_shows_them(step, tmp_path):
    assert step(f"print({SAID!r})").words == "done, with failures"
    assert "### b\n\n```\nwhy\n```" in (tmp_path / "report.md").read_text()


def test_predictions_count_bytes_and_operations():
    assert plan.DECODE.moved(4096) == 2 * 2 * 32 * 4 * 4096 * 128
    assert plan.FLASH.operations(16384) == 2 * 16 * 16384**2 * 128
    assert len(list(plan.predictions())) == 4 + 4 + 3


def test_what_is_tuned_is_a_table_that_can_be_committed(monkeypatch, tmp_path):
    known = json.loads(tiles.FILE.read_text())
    name = "flash, 2 bytes"
    monkeypatch.setattr(tiles, "table", lambda: {**known, name: tune.CHOICES["flash"][0]})
    tune._store(tmp_path / "tiles.json")
    monkeypatch.setattr(tiles, "table", lambda: {**known, "card": "H100"})
    tune._store(tmp_path / "tiles.json")
    stored = json.loads((tmp_path / "tiles.json").read_text())
    assert stored == {**known, name: tune.CHOICES["flash"][0], "card": "H100"}
    for kernel, choices in tune.CHOICES.items():
        for choice in choices:
            assert choice.keys() == known[f"{kernel}, 2 bytes"].keys()


def test_the_checkout_fits_beside_its_wheels():
    assert size.checkout() <= size.CHECKOUT
    assert size.CHECKOUT + size.WHEELS <= 64 << 20
