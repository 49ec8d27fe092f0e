"""Training loop, synthetic data and plots."""

import doctest
import subprocess
import sys

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from course_pkg import data, plot, train
from course_pkg.data import recall


@pytest.fixture(autouse=True)
def no_open_figures():
    yield
    plt.close("all")


# Data


def test_adding_problem_is_the_sum_of_two_marked_numbers():
    X, y = data.adding_problem(B=7, T=9, generator=0)
    assert X.shape == (7, 9, 2) and y.shape == (7,)
    numbers, marks = X.unbind(dim=2)
    assert ((numbers >= 0) & (numbers < 1)).all()
    assert set(marks.unique().tolist()) == {0.0, 1.0}
    assert (marks[:, :4].sum(dim=1) == 1).all() and (marks[:, 4:].sum(dim=1) == 1).all()
    torch.testing.assert_close((numbers * marks).sum(dim=1), y)


def test_adding_problem_marks_every_step_of_its_half_equally_often():
    B, T = 20_000, 10
    X, _ = data.adding_problem(B, T, generator=0)
    share = X[:, :, 1].mean(dim=0)
    torch.testing.assert_close(share, torch.full((T,), 2 / T), rtol=0.05, atol=0)


def test_adding_problem_has_mean_one_and_variance_one_sixth():
    _, y = data.adding_problem(B=100_000, T=5, generator=3)
    assert y.mean().item() == pytest.approx(1, abs=0.01)
    assert y.var().item() == pytest.approx(1 / 6, abs=0.005)


def test_recall_first_names_the_key_and_never_shows_one_again():
    X, y = data.recall_first(B=500, T=6, generator=0, keys=3, distractors=4)
    assert X.shape == (500, 6, 7)
    assert (X.sum(dim=2) == 1).all() and set(X.unique().tolist()) == {0.0, 1.0}
    symbols = X.argmax(dim=2)
    assert torch.equal(symbols[:, 0], y)
    assert set(y.tolist()) == {0, 1, 2}
    assert set(symbols[:, 1:].unique().tolist()) == {3, 4, 5, 6}


def test_recall_first_may_be_a_single_step():
    X, y = data.recall_first(B=2, T=1, generator=0)
    assert X.shape == (2, 1, 16) and y.shape == (2,)


@pytest.mark.parametrize("task", [data.adding_problem, data.recall_first])
def test_tasks_depend_on_their_generator_alone(task):
    torch.manual_seed(1)
    first = task(4, 6, 11)
    torch.manual_seed(2)
    before = torch.get_rng_state()
    again = task(4, 6, torch.Generator().manual_seed(11))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(map(torch.equal, first, again))
    assert not torch.equal(first[0], task(4, 6, 12)[0])


def test_a_generator_gives_a_new_batch_each_time():
    generator = torch.Generator().manual_seed(0)
    first, second = (data.adding_problem(4, 6, generator)[0] for _ in range(2))
    assert not torch.equal(first, second)


def test_the_examples_in_the_docstrings_are_right():
    found = doctest.testmod(recall)
    assert found.attempted >= 6 and found.failed == 0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: data.adding_problem(0, 5, 0), "B must be at least 1, got 0"),
        (lambda: data.adding_problem(3, 1, 0), "T must be at least 2, got 1"),
        (lambda: data.recall_first(3, 0, 0), "T must be at least 1, got 0"),
        (lambda: data.recall_first(3, 5, 0, keys=1), "keys must be at least 2, got 1"),
        (lambda: data.recall_first(3, 5, 0, distractors=0), "distractors must be at least 1"),
    ],
)
def test_data_refuses_nonsensical_sizes(make, message):
    with pytest.raises(ValueError, match=message):
        make()


# Training


def line(generator):
    X = torch.randn(16, 1, generator=generator)
    return X, 3 * X - 1


def squared_error(model, X, y):
    return functional.mse_loss(model(X), y)


def fit(model=None, **options):
    torch.manual_seed(0)
    model = nn.Linear(1, 1) if model is None else model
    return model, train.fit(model, line, squared_error, **{"steps": 50, "lr": 0.1, **options})


def test_fit_learns():
    model, history = fit(steps=200)
    assert len(history.losses) == 200 and history.losses[-1] < 1e-3 < history.losses[0]
    assert model.weight.item() == pytest.approx(3, abs=0.02)
    assert model.bias.item() == pytest.approx(-1, abs=0.02)


def test_fit_starts_from_the_loss_of_the_untrained_model():
    model, history = fit(nn.Linear(1, 1), steps=1, lr=1e-12)
    batch = line(torch.Generator().manual_seed(0))
    assert history.losses == [pytest.approx(squared_error(model, *batch).item(), rel=1e-5)]


def test_fit_depends_on_its_seed_alone():
    losses = []
    for global_seed, seed in ((1, 5), (2, 5), (1, 6)):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(1, 4), nn.Dropout(0.5), nn.Linear(4, 1))
        torch.manual_seed(global_seed)
        losses.append(train.fit(model, line, squared_error, steps=5, lr=0.1, seed=seed).losses)
    assert losses[0] == losses[1] != losses[2]


def test_fit_leaves_the_global_random_state_alone():
    model = nn.Linear(1, 1)
    before = torch.get_rng_state()
    train.fit(model, line, squared_error, steps=2, lr=0.1, seed=9)
    assert torch.equal(torch.get_rng_state(), before)


def test_fit_trains_with_one_thread_and_restores_them():
    seen = []

    def loss(model, X, y):
        seen.append(torch.get_num_threads())
        return squared_error(model, X, y)

    def broken(model, X, y):
        raise RuntimeError("broken")

    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        train.fit(nn.Linear(1, 1), line, loss, steps=2, lr=0.1)
        assert seen == [1, 1] and torch.get_num_threads() == 3
        with pytest.raises(RuntimeError, match="broken"):
            train.fit(nn.Linear(1, 1), line, broken, steps=2, lr=0.1)
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


def test_fit_clips_the_gradient(monkeypatch):
    norms = []
    step = torch.optim.Adam.step

    def record(optimizer):
        (group,) = optimizer.param_groups
        norms.append(torch.cat([p.grad.flatten() for p in group["params"]]).norm().item())
        return step(optimizer)

    monkeypatch.setattr(torch.optim.Adam, "step", record)
    fit(steps=3)
    fit(steps=3, clip=0.01)
    assert min(norms[:3]) > 0.1
    assert norms[3:] == [pytest.approx(0.01, rel=1e-3)] * 3


def test_fit_follows_a_schedule_of_learning_rates(monkeypatch):
    rates = []
    step = torch.optim.Adam.step

    def record(optimizer):
        rates.append(optimizer.param_groups[0]["lr"])
        return step(optimizer)

    monkeypatch.setattr(torch.optim.Adam, "step", record)
    fit(steps=4, lr=lambda step: 0.1 / step)
    assert rates == [0.1, 0.1 / 2, 0.1 / 3, 0.1 / 4]
    _, scheduled = fit(lr=lambda step: 0.1)
    assert scheduled.losses == fit(lr=0.1)[1].losses
    with pytest.raises(ValueError, match="lr=-1"):
        fit(lr=lambda step: -step)


def test_fit_measures_metrics_in_evaluation_mode_without_gradients():
    seen = {}

    def evaluate(model):
        seen.update(training=model.training, gradients=torch.is_grad_enabled())
        return {"weight": model.weight.item()}

    model, history = fit(evaluate=evaluate)
    assert seen == {"training": False, "gradients": False}
    assert history.metrics == {"weight": model.weight.item()}
    assert not model.training


def test_the_bar_is_on_stdout_and_says_the_same_every_time(capsys):
    outputs = []
    for _ in range(2):
        _, history = fit(steps=80, label="line")
        captured = capsys.readouterr()
        assert captured.err == ""
        outputs.append(captured.out)
    assert outputs[0] == outputs[1]
    *updates, last = outputs[0].strip().split("\r")
    assert len(updates) <= 12
    assert last == f"line  {'█' * 20}  80/80, loss {history.losses[-1]:.4f}"


@pytest.mark.parametrize("steps", [1, 7, 300])
def test_a_loop_of_ones_own_has_the_same_bar(steps, capsys):
    assert list(train.progress(steps, "mine")) == list(range(steps))
    captured = capsys.readouterr()
    assert captured.err == ""
    *updates, last = captured.out.strip().split("\r")
    assert len(updates) <= 12
    assert last == f"mine  {'█' * 20}  {steps}/{steps}"


def test_fit_passes_what_is_not_a_tensor():
    lengths = []

    def batches(generator):
        return (*line(generator), [1, 2])

    def loss(model, X, y, extra):
        lengths.append(extra)
        return squared_error(model, X, y)

    train.fit(nn.Linear(1, 1), batches, loss, steps=1, lr=0.1)
    assert lengths == [[1, 2]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": 0}, "steps must be at least 1, got 0"),
        ({"lr": 0.0}, "lr and clip must be positive"),
        ({"clip": -1.0}, "lr and clip must be positive"),
        ({"model": nn.Tanh()}, "no parameters"),
    ],
)
def test_fit_refuses_bad_input(options, message):
    with pytest.raises(ValueError, match=message):
        fit(**options)


def test_fit_refuses_a_loss_that_is_no_scalar():
    with pytest.raises(ValueError, match=r"scalar, got shape \[16, 1\]"):
        train.fit(nn.Linear(1, 1), line, lambda model, X, y: model(X) - y, steps=1, lr=0.1)


@pytest.mark.parametrize(
    ("wanted", "gpu", "expected"),
    [
        (None, False, "cpu"),
        ("auto", True, "cuda"),
        ("cpu", True, "cpu"),
        ("mps", True, "mps"),
    ],
)
def test_device(monkeypatch, wanted, gpu, expected):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: gpu)
    monkeypatch.delenv("COURSE_DEVICE", raising=False)
    if wanted is not None:
        monkeypatch.setenv("COURSE_DEVICE", wanted)
    assert train.device() == torch.device(expected)


@pytest.mark.parametrize(
    ("wanted", "message"),
    [("cuda", "is cuda, but"), ("mps", "is mps, but"), ("tpu", "got 'tpu'")],
)
def test_device_refuses(monkeypatch, wanted, message):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    monkeypatch.setenv("COURSE_DEVICE", wanted)
    with pytest.raises(train.DeviceError, match=message):
        train.device()


# Plots

TEXT = {"title": "It falls", "xlabel": "step", "ylabel": "loss"}


def labels(ax):
    return {text.get_text(): text for text in ax.texts}


def test_importing_the_package_does_not_import_pyplot():
    code = "import sys, course_pkg; sys.exit('matplotlib.pyplot' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_curves_draw_each_line_and_name_it_in_its_colour():
    ax = plot.curves({"one": [3, 2, 1], "two": torch.tensor([1.0, 5.0, 9.0])}, **TEXT)
    one, two = ax.lines
    assert one.get_ydata().tolist() == [3, 2, 1] and two.get_ydata().tolist() == [1, 5, 9]
    assert two.get_xdata().tolist() == [0, 1, 2]
    assert labels(ax)["one"].get_color() == one.get_color() != two.get_color()
    assert ax.get_title(loc=plt.rcParams["axes.titlelocation"]) == "It falls"
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("step", "loss")


def test_labels_keep_their_distance_and_their_order():
    lines = {name: [0.0, 1 + n * 1e-3] for n, name in enumerate("abcd")}
    ax = plot.curves({**lines, "low": [0.0, -50.0]}, **TEXT)
    heights = [labels(ax)[name].xy[1] for name in ("low", *"abcd")]
    assert (np.diff(heights) > 0.07).all()
    assert 0 <= heights[0] < 0.2 and heights[-1] <= 1


def test_curves_keep_small_values_on_a_logarithmic_axis():
    values = 10.0 ** -np.arange(30)
    ax = plot.curves({"g": values}, yscale="log", **TEXT)
    assert ax.get_yscale() == "log"
    np.testing.assert_allclose(ax.lines[0].get_ydata(), values, rtol=1e-12)


def test_curves_smooth_over_the_last_values():
    ax = plot.curves({"g": [4, 2, 0, 6]}, smooth=2, **TEXT)
    assert ax.lines[0].get_ydata().tolist() == [4, 3, 1, 3]


def test_curves_draw_bands_and_a_reference():
    ax = plot.curves(
        {"g": torch.ones(3, requires_grad=True)},
        bands={"g": ([0, 0, 0], [2, 2, 2])},
        reference=(1.5, "chance"),
        **TEXT,
    )
    assert len(ax.collections) == 1
    assert set(ax.lines[1].get_ydata()) == {1.5}
    assert {"g", "chance"} <= set(labels(ax))


def test_curves_place_labels_by_the_limits_that_are_given():
    options = {"title": "", "xlabel": "", "ylabel": ""}
    ax = plot.curves({"line": [3.0, 1.0]}, reference=(4.0, "four"), limits=(0, 8), **options)
    assert ax.get_ylim() == (0, 8)
    heights = {text.get_text(): text.xy[1] for text in ax.texts}
    assert heights == {"line": pytest.approx(1 / 8), "four": pytest.approx(4 / 8)}


def test_curves_survive_a_run_that_diverged():
    inf, nan = float("inf"), float("nan")
    ax = plot.curves({"g": [1.0, inf, nan], "dead": [nan, nan, nan]}, **TEXT)
    assert set(labels(ax)) == {"g"}


@pytest.mark.parametrize(
    ("lines", "options", "message"),
    [
        ({}, {}, "at least one line"),
        ({"g": [1, 2]}, {"x": [1]}, "g has 2 values, but x has 1"),
        ({"g": [[1, 2]]}, {}, r"g must be a list of numbers, got shape \(1, 2\)"),
        ({"g": [1, 2]}, {"bands": {"h": ([0, 0], [1, 1])}}, "not drawn: \\['h'\\]"),
        ({"g": [1, 2]}, {"bands": {"g": ([0], [1])}}, "differ in length"),
        ({"g": [1, 2]}, {"smooth": 0}, "smooth must be at least 1"),
    ],
)
def test_curves_refuse_bad_input(lines, options, message):
    with pytest.raises(ValueError, match=message):
        plot.curves(lines, **TEXT, **options)


def test_heatmap_has_square_cells_tokens_and_a_colour_bar():
    ax = plot.heatmap(
        torch.arange(6.0).reshape(2, 3),
        title="It looks back",
        rows=["el", "gato"],
        columns=["the", "cat", "."],
        colour_label="weight",
        limits=(0, 10),
    )
    assert ax.get_aspect() == 1
    assert [tick.get_text() for tick in ax.get_yticklabels()] == ["el", "gato"]
    assert [tick.get_text() for tick in ax.get_xticklabels()] == ["the", "cat", "."]
    assert ax.images[0].get_clim() == (0, 10)
    assert [child.get_ylabel() for child in ax.child_axes] == ["weight"]


def test_heatmap_thins_out_tokens_that_would_be_too_small():
    ax = plot.heatmap(np.eye(200), title="Many", columns=[str(n % 10) for n in range(200)])
    assert 20 < len(ax.get_xticks()) < 100
    assert min(tick.get_fontsize() for tick in ax.get_xticklabels()) >= 6


@pytest.mark.parametrize(
    ("values", "options", "message"),
    [
        ([1, 2], {}, r"needs a matrix, got shape \(2,\)"),
        (np.zeros((0, 3)), {}, r"needs a matrix, got shape \(0, 3\)"),
        ([[1, 2]], {"columns": ["a"]}, "got 1 tokens for 2"),
    ],
)
def test_heatmap_refuses_bad_input(values, options, message):
    with pytest.raises(ValueError, match=message):
        plot.heatmap(values, title="None", **options)


def test_style_applies_the_style_sheet():
    with plt.rc_context():
        plot.style()
        assert plt.rcParams["figure.facecolor"] == "white"
        assert plt.rcParams["axes.titlelocation"] == "left"
