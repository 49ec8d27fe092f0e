"""What a rule forbids raises by whatever way it is called, and only while the rule is enforced."""

import html
import importlib
import inspect
import sys
import warnings
from types import SimpleNamespace

import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import nn
from torch._dispatch.python import enable_python_dispatcher
from torch._higher_order_ops.associative_scan import associative_scan, generic_associative_scan
from torch._higher_order_ops.flex_attention import math_attention
from torch.distributions import Normal
from torch.distributions.kl import _kl_normal_normal
from torch.nn import functional as F
from torch.nn.attention.flex_attention import _create_empty_block_mask

from autograder.assignment import assignments
from course_pkg import check
from course_pkg.checking import CheckFailed
from course_pkg.checking.guard import Guarded
from course_pkg.checking.registry import CHECKS, find
from course_pkg.checking.rules.enforcement import enforced, prepare
from course_pkg.checking.rules.rules import (
    ATTENTION,
    CONVOLUTION,
    GRU,
    LSTM,
    NOTHING,
    RMS_NORM,
    RNN,
    SCAN,
    TRANSFORMER,
    rule_of,
)
from course_pkg.checking.runner import run_here

for assignment in assignments():
    importlib.import_module(f"course_pkg.checks.{assignment.topic}")

X = torch.randn(1, 2, 4)
Q = torch.randn(1, 2, 5, 4)
CELL, LSTM_CELL, RNN_CELL = nn.GRUCell(4, 3), nn.LSTMCell(4, 3), nn.RNNCell(4, 3)
WEIGHTS = (CELL.weight_ih, CELL.weight_hh, CELL.bias_ih, CELL.bias_hh)
LAYER = nn.LSTM(4, 3)
HEADS = nn.MultiheadAttention(4, 2, batch_first=True)
ENCODER = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
NORM = nn.RMSNorm(4)
SCRIPTED = torch.jit.script(CELL)
SCRIPTED(X[0])
FLASH = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu


def dispatched(function):
    with enable_python_dispatcher():
        return function()


WAYS = {
    "a module made before": (GRU, lambda: CELL(X[0])),
    "a new module": (GRU, lambda: nn.GRUCell(4, 3)),
    "the layer": (LSTM, lambda: LAYER(X)),
    "the cell": (LSTM, lambda: LSTM_CELL(X[0])),
    "RNN": (RNN, lambda: RNN_CELL(X[0])),
    "ReLU": (RNN, lambda: torch.rnn_relu_cell(X[0], torch.zeros(2, 3), *_rnn_weights())),
    "TorchScript": (GRU, lambda: SCRIPTED(X[0])),
    "aten": (GRU, lambda: torch.ops.aten.gru_cell(X[0], torch.zeros(2, 3), *WEIGHTS)),
    "the decomposition": (LSTM, lambda: torch._decomp.decompositions.lstm_impl()),
    "the Python dispatcher": (LSTM, lambda: dispatched(lambda: LAYER(X))),
    "attention": (ATTENTION, lambda: F.scaled_dot_product_attention(Q, Q, Q)),
    "attention in a vmap": (ATTENTION, lambda: torch.vmap(F.scaled_dot_product_attention)(Q, Q, Q)),
    "attention by its kernel": (ATTENTION, lambda: FLASH(Q, Q, Q)),
    "heads": (ATTENTION, lambda: HEADS(X, X, X)),
    "heads by their function": (ATTENTION, lambda: F.multi_head_attention_forward()),
    "heads with autocast": (
        ATTENTION,
        lambda: torch.autocast("cpu", torch.bfloat16)(F.scaled_dot_product_attention)(Q, Q, Q),
    ),
    "an encoder's layer": (TRANSFORMER, lambda: ENCODER(X)),
    "its operator": (TRANSFORMER, lambda: torch._transformer_encoder_layer_fwd(*_encoder())),
    "a norm made before": (RMS_NORM, lambda: NORM(X)),
    "a norm by its function": (RMS_NORM, lambda: torch.rms_norm(X, [4])),
    "a norm by its kernel": (RMS_NORM, lambda: torch.ops.aten._fused_rms_norm(X, [4], None, 1e-5)),
    "flex attention, computed": (ATTENTION, lambda: _flex()),
    "a convolution": (CONVOLUTION, lambda: F.conv1d(X, TAPS, groups=2)),
    "kept in a list": (CONVOLUTION, lambda: KEPT[0](X, TAPS, groups=2)),
    "by a joined name": (CONVOLUTION, lambda: getattr(F, "con" + "v1d")(X, TAPS, groups=2)),
    "a layer of it": (CONVOLUTION, lambda: CONV(X)),
    "in two dimensions": (CONVOLUTION, lambda: F.conv2d(X[..., None], TAPS[..., None], groups=2)),
    "transposed": (CONVOLUTION, lambda: F.conv_transpose1d(X, TAPS)),
    "its own operator": (CONVOLUTION, lambda: torch.ops.aten.convolution(*_convolved())),
    "torch.convolution": (CONVOLUTION, lambda: torch.convolution(*_convolved())),
    "of a library": (CONVOLUTION, lambda: torch.ops.mkldnn._convolution_pointwise(*_pointwise())),
    "in a vmap": (CONVOLUTION, lambda: torch.vmap(lambda x: F.conv1d(x, TAPS, groups=2))(X[None])),
    "a scan": (SCAN, lambda: associative_scan(_combined, (X, X), 1, combine_mode="generic")),
    "a scan, computed": (SCAN, lambda: generic_associative_scan(_flat, [X, X], 1)),
    "a divergence": (rule_of(find("sample_latent")), lambda: _kl_normal_normal(NORMAL, NORMAL)),
    "sklearn": (rule_of(find("linear_probe")), LogisticRegression),
    "sklearn, made before": (rule_of(find("linear_probe")), lambda: MODEL.fit([[0], [1]], [0, 1])),
}
MODEL = LogisticRegression()
TAPS, CONV, KEPT = torch.randn(2, 1, 3), nn.Conv1d(2, 2, 3), [torch.conv1d]
NORMAL = Normal(torch.zeros(2), torch.ones(2))


def _convolved():
    return X, TAPS, None, [1], [0], [1], False, [0], 2


def _pointwise():
    return X[..., None], torch.randn(2, 2, 1, 1), None, [0, 0], [1, 1], [1, 1], 1, "none", [], ""


def _combined(a, b):
    return a[0] * b[0], b[0] * a[1] + b[1]


def _flat(a, c, b, d):
    return a * b, b * c + d


def _flex():
    block_mask = _create_empty_block_mask(Q, Q).as_tuple()
    return math_attention(Q, Q, Q, lambda score, *_: score, block_mask, 0.5, {})


def _rnn_weights():
    return RNN_CELL.weight_ih, RNN_CELL.weight_hh


def _encoder():
    heads, normal = ENCODER.self_attn, (ENCODER.norm1, ENCODER.norm2)
    return (
        *(X, 4, 2, heads.in_proj_weight, heads.in_proj_bias),
        *(heads.out_proj.weight, heads.out_proj.bias, False, False, 1e-5),
        *(normal[0].weight, normal[0].bias, normal[1].weight, normal[1].bias),
        *(ENCODER.linear1.weight, ENCODER.linear1.bias),
        *(ENCODER.linear2.weight, ENCODER.linear2.bias),
    )


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("grad", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_what_is_forbidden_raises(way, grad):
    rule, call = WAYS[way]
    with enforced(rule), pytest.raises(RuntimeError, match="must not be used in this exercise"):
        with grad():
            call()
    if way not in ("the decomposition", "heads by their function"):  # called without arguments
        with torch.no_grad():
            call()


def test_the_name_is_the_one_of_the_rule():
    with enforced(GRU), pytest.raises(RuntimeError, match=r"^torch\.nn\.GRUCell must not"):
        CELL(X[0])
    with enforced(GRU), pytest.raises(RuntimeError, match=r"^torch\.gru_cell must not"):
        torch.ops.aten.gru_cell(X[0], torch.zeros(2, 3), *WEIGHTS)


def test_the_rest_of_torch_goes_on():
    with enforced(GRU):
        assert LSTM_CELL(X[0])[0].shape == (2, 3)
        assert F.scaled_dot_product_attention(Q, Q, Q).shape == Q.shape
    with enforced(TRANSFORMER):
        assert F.scaled_dot_product_attention(Q, Q, Q).shape == Q.shape
        assert nn.Transformer.generate_square_subsequent_mask(3).shape == (3, 3)


def test_what_was_put_in_its_place_changes_nothing(monkeypatch):
    prepare()
    kept = F.multi_head_attention_forward
    monkeypatch.setattr(F, "multi_head_attention_forward", lambda *inputs: None)
    with enforced(ATTENTION), pytest.raises(RuntimeError, match="must not be used"):
        kept()


def test_blocks_within_each_other():
    with enforced(GRU):
        with enforced(GRU), enforced(LSTM), enforced(NOTHING):
            pass
        with pytest.raises(RuntimeError, match="must not"):
            CELL(X[0])
        assert LSTM_CELL(X[0])
    assert CELL(X[0]).shape == (2, 3)


def test_it_warns_nobody():
    with warnings.catch_warnings(action="error"), enforced(GRU), enforced(ATTENTION):
        pass


def gru_step(x, h, W_x, W_h, b_x, b_h):
    return torch.gru_cell(x, h, W_x, W_h, b_x, b_h)


def test_a_check_at_home_says_what_the_grader_says(capsys):
    with pytest.raises(CheckFailed) as caught:
        check(gru_step)
    words = " ".join(str(caught.value).split())
    assert "gru_step raised RuntimeError: torch.gru_cell must not be used in this exercise" in words
    line = inspect.getsourcelines(gru_step)[1] + 1
    assert f"in line {line}: return torch.gru_cell(x, h, W_x, W_h, b_x, b_h)" in words
    assert f"! gru_step uses torch.gru_cell, in line {line} of its cell" in words
    assert "write it yourself; a grader will look at it." in words
    assert caught.value.report.share == 0


def test_in_a_notebook_the_cells_that_have_run_are_read(monkeypatch):
    cells = ["", "step = gru_step", "def gru_step(*parts):\n    return torch.gru_cell(*parts)"]
    cells += ["import torch", "check(gru_step)"]
    shell = SimpleNamespace(history_manager=SimpleNamespace(input_hist_raw=cells))
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    report = run_here(find("gru_step"), gru_step)
    assert report.breach.startswith("gru_step uses torch.gru_cell, in line 2 of its cell")
    assert html.escape(report.breach) in report._repr_html_()
    cells.append("def gru_step(*parts):\n    return parts[1]")
    assert run_here(find("gru_step"), gru_step).breach is None


def test_what_is_only_named_costs_nothing():
    """The checks' own oracles use torch's, which stands as before."""
    from course_pkg.lstm import gru_step as right

    source = inspect.getsource(right) + "    nn.GRUCell\n"
    names = dict(vars(inspect.getmodule(right)))
    exec(compile(source, "<cell>", "exec"), names)
    report = run_here(find("gru_step"), names["gru_step"])
    assert report.passed and report.share == 1


def test_objects_of_a_solution_keep_its_rule():
    class Step:
        def __init__(self):
            self.cell = CELL

        def run(self):
            return self.cell(X[0])

    guarded = Guarded(Step, "Step", rule=GRU)()
    with pytest.raises(Exception, match=r"torch\.nn\.GRUCell must not be used"):
        guarded.run()


def test_rules_are_kept_where_they_can_be_seen():
    assert sum(rule_of(exercise) != NOTHING for exercise in CHECKS) >= 18


@pytest.mark.parametrize("seed", [0, 1])
def test_a_seed_is_noticed_also_where_checks_begin_with_it(seed):
    from course_pkg.lstm import gru_step as right

    def gru_step(*parts):
        torch.manual_seed(seed)
        return right(*parts)

    report = run_here(find("gru_step"), gru_step)
    assert "gru_step sets torch's seed" in report.text and report.share == 0
