"""Rules: what would make an exercise empty must not do its work.

A rule holds in two ways. A solution that calls what is forbidden fails where it does (see
enforcement). One that only names it keeps its points, and a person looks at it (see uses).
"""

from collections.abc import Callable
from typing import NamedTuple

from course_pkg.checking.registry import Exercise


class Rule(NamedTuple):
    """What solutions must not use.

    Args:
        names: full names of functions and classes, such as torch.nn.LSTM.
        operators: a pattern of what torch's own operators for it have in their names. No right
            solution may need one that it matches.
    """

    names: tuple[str, ...] = ()
    operators: str | None = None


NOTHING = Rule()
# What torch has of what the course builds.
RNN = Rule(("torch.nn.RNN", "torch.nn.RNNCell", "torch.rnn_tanh", "torch.rnn_tanh_cell"), "rnn")
LSTM = Rule(
    (
        "torch.nn.LSTM",
        "torch.nn.LSTMCell",
        "torch.lstm",
        "torch.lstm_cell",
        "torch.ao.nn.quantizable.LSTM",
        "torch.ao.nn.quantizable.LSTMCell",
    ),
    "lstm|_rnn",
)
GRU = Rule(("torch.nn.GRU", "torch.nn.GRUCell", "torch.gru", "torch.gru_cell"), "gru|_rnn")
ATTENTION = Rule(
    (
        "torch.nn.functional.scaled_dot_product_attention",
        "torch.scaled_dot_product_attention",
        "torch.nn.MultiheadAttention",
        "torch.nn.functional.multi_head_attention_forward",
        "torch.nn.attention.flex_attention.flex_attention",
        "torch._higher_order_ops.flex_attention.math_attention",
        "torch._higher_order_ops.flex_attention._math_attention_inner",
        "torch.ao.nn.quantizable.MultiheadAttention",
    ),
    "attention",
)
TRANSFORMER = Rule(
    (
        "torch.nn.Transformer",
        "torch.nn.TransformerEncoder",
        "torch.nn.TransformerEncoderLayer",
        "torch.nn.TransformerDecoder",
        "torch.nn.TransformerDecoderLayer",
        "torch.nn.MultiheadAttention",
        "torch.nn.functional.multi_head_attention_forward",
        "torch.ao.nn.quantizable.MultiheadAttention",
    ),
    "transformer_encoder|multi_head_attention",
)
RMS_NORM = Rule(
    ("torch.nn.RMSNorm", "torch.nn.functional.rms_norm", "torch.rms_norm"),
    "rms_norm",
)
_CONVOLUTIONS = ("conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_tbc")
CONVOLUTION = Rule(
    (
        *(f"torch.nn.functional.{name}" for name in _CONVOLUTIONS),
        *(f"torch.{name}" for name in (*_CONVOLUTIONS, "convolution", "_convolution")),
        *(f"torch.nn.Conv{n}d" for n in (1, 2, 3)),
        *(f"torch.nn.ConvTranspose{n}d" for n in (1, 2, 3)),
        *(f"torch.nn.LazyConv{n}d" for n in (1, 2, 3)),
    ),
    r"^(?!.*(backward|quantized|onednn|cudnn|miopen|mps|prepack|weight)).*conv(?!ert)",
)
SCAN = Rule(
    (
        "torch._higher_order_ops.associative_scan.associative_scan",
        "torch._higher_order_ops.associative_scan.generic_associative_scan",
        "torch._higher_order_ops.scan.scan",
        "torch._higher_order_ops.scan.generic_scan",
    ),
)
READY_MADE = (RNN, LSTM, GRU, ATTENTION, TRANSFORMER, RMS_NORM, CONVOLUTION, SCAN)
_RULES: dict[Exercise, Rule] = {}


def forbid(reference: Callable, rule: Rule) -> None:
    """Forbid functions and classes in the solutions of an exercise.

    Args:
        reference: the function or class in course_pkg.
        rule: what is forbidden.
    """
    _RULES[Exercise.of(reference)] = rule


def rule_of(exercise: Exercise) -> Rule:
    """Say what solutions of an exercise must not use."""
    return _RULES.get(exercise, NOTHING)


def all_rules() -> set[Rule]:
    """Give the rules of this module and of the checks that have been imported."""
    return {*READY_MADE, *_RULES.values()}
