"""Challenges: honest functions get the value that they should, and cheats get none."""

import argparse
import csv
import math
from random import Random

import nbformat
import pytest
import torch
from nbformat.v4 import new_code_cell

from autograder.assignment import Assignment, CourseError, assignments
from autograder.classroom import challenge as command
from autograder.classroom.attempt import Attempt, attempt, chosen_name, takes_part
from autograder.classroom.challenge import Entry, page, ranked
from autograder.classroom.challenges import Refused, find
from autograder.classroom.challenges.gpt import BitsPerByte
from autograder.classroom.challenges.serving import Admission
from autograder.classroom.challenges.speculative import Passes
from autograder.classroom.challenges.vit import FiftyLetters
from autograder.classroom.table import as_csv
from autograder.grade.judging.verdict import Step
from autograder.grade.kernel.kernel import start
from autograder.grade.submission.plan import Plan
from course_pkg.data import requests
from course_pkg.data.language import Language
from course_pkg.engine.requests import EngineConfig
from course_pkg.inference.load import serve
from course_pkg.serving import PreemptingScheduler
from tests import course as toolbox

pytestmark = pytest.mark.xdist_group("challenge")
SECRET = 7
GPT = BitsPerByte(size=5000, stretches=8, given=16, asked=8)
SERVING = Admission(loads=1, count=40)
SPECULATIVE = Passes(texts=2, prompt=32, new=12)
VIT = FiftyLetters(alphabets=1, unknown=20)


def refused(challenge, function) -> str:
    with pytest.raises(Refused) as error:
        challenge.measure(function, SECRET)
    return str(error.value)


def predicting(p):
    """A function that learns nothing and always gives the same probabilities."""
    return lambda training: lambda read: p.expand(len(read), -1)


def frequencies(training):
    counts = torch.bincount(torch.tensor(list(training)), minlength=256) + 0.01
    return lambda read: (counts / counts.sum()).expand(len(read), -1)


def test_bits_are_those_of_the_bytes_that_come():
    assert GPT.measure(predicting(torch.full((256,), 1 / 256)), SECRET) == pytest.approx(8)
    assert 3 < GPT.measure(frequencies, SECRET) < 4.5


def test_who_predicts_has_not_seen_what_is_asked_for():
    lengths = []

    def challenge(training):
        def predict(read):
            lengths.append(read.shape[1])
            read.zero_()  # it is not the grader's own
            return frequencies(training)(read)

        return predict

    assert GPT.measure(challenge, SECRET) == GPT.measure(frequencies, SECRET)
    assert lengths == list(range(16, 24))


@pytest.mark.parametrize(
    ("p", "said"),
    [
        (torch.ones(256), "sum to one"),
        (torch.full((256,), math.nan), "sum to one"),
        (torch.full((256,), math.inf), "sum to one"),
        (torch.cat([torch.tensor([-254.0]), torch.ones(255)]), "negative"),
        (torch.eye(256)[0], "probability of 0"),
        (torch.full((255,), 1 / 255), "(8, 255)"),
        (torch.ones(256, dtype=torch.int64), "tensor of shape"),
    ],
)
def test_predictions_must_be_distributions(p, said):
    assert said in refused(GPT, predicting(p))


def test_no_stretch_goes_on_with_another():
    seen = []

    def challenge(training):
        return lambda read: seen.append(read) or torch.full((len(read), 256), 1 / 256)

    GPT.measure(challenge, SECRET)
    language = Language(SECRET)
    for n, stretch in enumerate(seen[-1]):
        own = language.text(24, Random(f"{SECRET} {n}"))
        assert bytes(stretch.tolist()) == own[:-1]  # all but the last byte


def test_what_learns_must_return_a_function():
    assert "return a function" in refused(GPT, lambda training: torch.ones(256))


def test_steps_are_those_of_the_scheduler_itself():
    seeds = []
    trace = requests.trace

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(requests, "trace", lambda n, s, **k: seeds.append(s) or trace(n, s, **k))
        value = SERVING.measure(SERVING.baseline, SECRET)
    load = trace(40, seeds[0], prompt=(20, 0.6), output=(42, 0.5), longest=256)
    load, computed = [request._replace(arrival=0) for request in load], []
    serve(PreemptingScheduler(EngineConfig(64, 8, watermark=8)), load, computed=computed)
    twice = sum(computed) - sum(request.prompt + request.output - 1 for request in load)
    assert value == pytest.approx(len(computed) + twice / 16)


def test_a_rule_that_always_refuses_serves_one_after_the_other():
    assert SERVING.measure(lambda *known: False, SECRET) > 1000


def test_a_rule_changes_nothing_but_its_answer():
    def spoil(blocks, available, running, ended):
        answer = SERVING.baseline(blocks, available, running, ended)
        running.clear()
        ended[:] = [0] * 100
        return answer

    assert SERVING.measure(spoil, SECRET) == SERVING.measure(SERVING.baseline, SECRET)


@pytest.mark.parametrize("answer", [None, 1, "yes", torch.tensor(True)])
def test_rules_say_yes_or_no(answer):
    assert "True or False" in refused(SERVING, lambda *known: answer)


def test_passes_are_counted():
    assert SPECULATIVE.measure(lambda tokens, k: [], SECRET) == 1000
    seen = {}

    def spy(tokens, k):
        seen[len(tokens)] = [*tokens]
        tokens += [0] * 100  # it is not the grader's own
        return []

    one = Passes(texts=1, prompt=32, new=12)
    one.measure(spy, SECRET)
    text = seen[43]  # all but the last token
    assert [len(each) for each in seen.values()] == list(range(32, 44))
    knowing = one.measure(lambda tokens, k: text[len(tokens) :][:k], SECRET)
    assert knowing == pytest.approx(1000 * 2 / 12)  # nine tokens, then three


@pytest.mark.parametrize(
    "draft", [[0] * 9, (0, 0), [True], [0.0], ["0"], None, torch.zeros(2, dtype=torch.int64)]
)
def test_drafts_are_short_lists_of_numbers(draft):
    assert "challenge" in refused(SPECULATIVE, lambda tokens, k: draft)


def test_the_numbers_of_one_text_say_nothing_of_another():
    kept = {}
    SPECULATIVE.measure(lambda tokens, k: kept.setdefault(tuple(tokens), []), SECRET)
    first, *_, last = (set(tokens) for tokens in kept)
    assert len(first & last) <= 2  # a line's end and a full stop, at least, are in both


def nearest(images, labels, unknown):
    means = torch.stack([images[labels == letter].mean(dim=0) for letter in range(10)])
    return torch.cdist(unknown.flatten(1), means.flatten(1)).argmin(dim=1)


def test_letters_are_counted_that_are_named_right():
    assert VIT.measure(nearest, SECRET) > 45
    # Their order says nothing, and numbers that no letter has are wrong.
    in_order = torch.arange(10).repeat_interleave(20)
    assert VIT.measure(lambda *known: in_order, SECRET) < 25
    assert VIT.measure(lambda *known: in_order + 10, SECRET) == 0


@pytest.mark.parametrize(
    "found", [torch.zeros(200), torch.zeros(199, dtype=torch.int64), [0] * 200, None]
)
def test_letters_are_named_by_whole_numbers(found):
    assert "whole numbers" in refused(VIT, lambda *known: found)


def test_every_challenge_is_told_in_its_master():
    found = []
    for assignment in assignments():
        try:
            find(assignment)
        except CourseError:
            continue
        found.append(assignment.name)
        task = assignment.master.read_text(encoding="utf-8").partition("## Go further")[2]
        assert "def challenge(" in task and "challenge_name = " in task
    assert found == ["08_gpt", "14_serving", "15_speculative", "18_vit"]


PLAN = Plan.read(Assignment("02_lstm").solved)


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ('challenge_name = "Ada"', "Ada"),
        ('challenge_name = "  two \\n words "', "two words"),
        ('challenge_name = "no"\nchallenge_name = "<b>=1+1</b>"', "<b>=1+1</b>"),
        (f'challenge_name = "{"x" * 31}"', None),
        ('challenge_name = "\\u202eadA"', None),
        ('challenge_name = "\\x1b[2J"', None),
        ('challenge_name = ""', None),
        ('challenge_name: str = "Ada"', "Ada"),
        ("challenge_name: str", None),
        ('challenge_name = "\\u3164"', None),
        ('challenge_name = "Ada\\u115f"', None),
        ('challenge_name = "\\u2800"', None),
        ('challenge_name = "?!"', None),
        ('challenge_name = "\u674e"', "\u674e"),
        ("challenge_name = 7", None),
        ("challenge_name = __import__('os').environ['USER']", None),
        ("challenge = 1", None),
    ],
)
def test_names_are_read_and_not_run(source, name):
    assert chosen_name([Step(None, source)], PLAN) == name


def test_only_who_has_written_the_function_takes_part():
    assert takes_part([Step(None, "def challenge(x):\n    return x")], PLAN)
    assert not takes_part([Step(None, "def challenge(x):\n    raise NotImplementedError")], PLAN)
    assert not takes_part([Step(None, 'challenge_name = "Ada"')], PLAN)


def test_equal_values_share_a_place_and_names_stay_apart():
    entries = [
        Entry("a", "Ada", Attempt(2.04)),
        Entry("b", None, Attempt(2.01)),
        Entry("c", "ADA", Attempt(1.0)),
        Entry("d", None, Attempt(None, reason="it crashed")),
        Entry("e", "Eve", Attempt(3.0)),
    ]
    rows = ranked(entries, SERVING)
    assert [(row.place, row.name) for row in rows] == [
        ("1", "ADA"),
        ("2", "Ada (2)"),
        ("2", "anonymous 1"),
        ("4", "Eve"),
        ("", "anonymous 2"),
    ]
    assert [row.place for row in ranked(entries, VIT)] == ["1", "2", "2", "4", ""]


def test_no_two_are_shown_under_one_name():
    names = ["anonymous 1", None, "Ada", "ADA", "Ada (2)", "Ada"]
    entries = [Entry(str(n), name, Attempt(float(n))) for n, name in enumerate(names)]
    assert [row.name for row in ranked(entries, SERVING)] == [
        "anonymous 1",
        "anonymous 2",
        "Ada",
        "ADA (2)",
        "Ada (2) (2)",
        "Ada (3)",
    ]


def test_names_and_reasons_are_harmless_where_they_are_shown():
    entries = [
        Entry("=cmd()", "<script>alert(1)</script>", Attempt(1.0)),
        Entry("b", "@SUM(A1)", Attempt(2.0)),
        Entry("secret id", "-1", Attempt(None, reason="+1 <b>")),
    ]
    rows = ranked(entries, SERVING)
    shown = page(Assignment("14_serving"), SERVING, rows, "3.0")
    assert "&lt;script&gt;" in shown and "<script>alert" not in shown
    assert not any(word in shown for word in ("cmd()", "secret id", "&lt;b&gt;"))
    cells = list(csv.reader(as_csv(row.columns for row in rows).splitlines()))
    assert cells[0][4] == "'=cmd()" and cells[1][1] == "'@SUM(A1)"
    assert cells[2][1] == "-1" and cells[2][5] == "'+1 <b>"


class Hurried(Admission):
    seconds = 1.0


def in_sandbox(source: str, challenge=SERVING) -> Attempt:
    with start("02_lstm") as kernel:
        kernel.run("import os, signal, time, torch\n" + source, 20.0)
        return attempt(kernel, challenge, SECRET)


@toolbox.needs_sandbox
def test_honest_functions_get_the_same_value_in_the_sandbox():
    rule = "def challenge(blocks, available, running, ended):\n    return blocks + 8 <= available"
    assert in_sandbox(rule).value == SERVING.measure(SERVING.baseline, SECRET)
    model = """\
def challenge(training):
    counts = torch.bincount(torch.tensor(list(training)), minlength=256) + 0.01
    p = counts / counts.sum()
    return lambda read: p.expand(len(read), -1)
"""
    patched = "torch.Tensor.log2 = lambda *_: torch.zeros(1)\ntime.monotonic = lambda: 0\n" + model
    honest = GPT.measure(frequencies, SECRET)
    for source in (model, patched):
        assert in_sandbox(source, GPT).value == pytest.approx(honest, rel=1e-5)


@toolbox.needs_sandbox
@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("while True:\n        pass", "more than 1 s"),
        ("os._exit(0)", "ended its Python process"),
        ("raise SystemExit", "SystemExit"),
        (f"return open({command.__file__!r}).read()", "FileNotFoundError"),
        ("return __import__('autograder').ROOT", "ModuleNotFoundError"),
        ("return type('bool', (), {})()", "True or False"),
        ("return 10**5000", "cannot be used: ValueError"),
    ],
)
def test_a_function_that_crashes_or_cheats_gets_no_value(body, said):
    found = in_sandbox(f"def challenge(*known):\n    {body}", Hurried(loads=1, count=40))
    assert found.value is None
    assert said in found.reason


@toolbox.needs_sandbox
def test_processor_time_is_counted_whoever_uses_it():
    found = in_sandbox(
        """\
signal.setitimer = lambda *_: None
def challenge(*known):
    signal.signal(signal.SIGPROF, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    if not os.fork():
        while True:
            pass
    time.sleep(60)
""",
        Hurried(loads=1, count=40),
    )
    assert found.value is None
    assert found.reason == "it took more than 1 s of processor time"
    assert 1 <= found.seconds < 4


@toolbox.needs_sandbox
def test_short_processes_do_not_hide():
    found = in_sandbox(
        """\
def challenge(*known):
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        if not os.fork():
            until = time.monotonic() + 0.02
            while time.monotonic() < until:
                pass
            os._exit(0)
        time.sleep(0.02)
""",
        Admission(loads=1, count=40),
    )
    assert found.value is None
    assert found.reason == "it started more than 100 processes and threads"


@toolbox.needs_sandbox
def test_a_class_is_ranked(tmp_path, capsys):
    serving = Assignment("14_serving")
    root = toolbox.new_course(tmp_path, serving, trim=_imports)
    rule = "def challenge(blocks, available, running, ended):\n    return {}\n"
    sources = {
        "ada": 'challenge_name = "=Ada & co"\n' + rule.format("blocks + 10 <= available"),
        "bob": "import time\ntime.sleep(60)\n" + rule.format("None"),
        "eve": 'challenge_name = "Eve"\n' + rule.format("__import__('os')._exit(1)"),
        "sam": "print('no function')",
    }
    for student, source in sources.items():
        nb = nbformat.read(root / "solutions" / serving.name / f"{serving.name}.ipynb", 4)
        nb.cells.append(new_code_cell(source))
        toolbox.submit(root, student, serving, nb)
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    options = [serving.name, "--course", str(root), "--workers", "1"]
    assert command.main(parser.parse_args(options)) == 0
    assert "a watermark of 8" in capsys.readouterr().out
    place = root / toolbox.WORK / "challenge_14_serving.csv"
    with open(place, newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [(row["student"], row["place"], row["name"]) for row in rows] == [
        ("ada", "1", "'=Ada & co"),
        ("bob", "", "anonymous 1"),
        ("eve", "", "Eve"),
    ]
    assert rows[1]["reason"].startswith(
        "one of its own cells was stopped: it ran for more than 5 s; "
    )
    assert "not defined" in rows[1]["reason"] and "ended" in rows[2]["reason"]
    shown = place.with_suffix(".html").read_text(encoding="utf-8")
    assert "=Ada &amp; co" in shown and "Eve" not in shown


def _imports(nb):
    """Keep the cell of imports, and one exercise with its check."""
    kept = ("Scheduler", "check_Scheduler")
    nb.cells = [c for c in nb.cells if c.id in kept or "from course_pkg import" in c.source]
    return nb
