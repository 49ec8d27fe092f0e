"""The format between checks and student code: everything arrives as it was, garbage never does."""

import io
import json
import random
import struct
from collections import OrderedDict, namedtuple

import numpy as np
import pytest
import torch
from torch import nn

from course_pkg.remote import messages as wire
from course_pkg.remote.messages import Decoder, Encoder, WireError

Pair = namedtuple("Pair", "logits state")


def through(value):
    """Send a value and read it back."""
    encoder = Encoder()
    data = encoder.message({"value": encoder.value(value)})
    message = wire.read(io.BytesIO(data))
    return message.value(message.header["value"])


def message(header: object, body: bytes = b"") -> Decoder:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return wire.read(io.BytesIO(struct.pack("!IQ", len(text), len(body)) + text + body))


def spec(**changes) -> dict:
    plain = {"dtype": "float32", "shape": [2], "order": [0], "requires_grad": False, "leaf": True}
    return plain | {"parameter": False, "grad": None} | changes


PLAIN = [
    None,
    True,
    -3,
    2**63,
    -(2**70),
    0.1,
    float("inf"),
    -0.0,
    1 - 2j,
    "χ\n\ud800",
    b"\x00\xff",
    b"",
    range(3, 9, 2),
    torch.bfloat16,
    [],
    (),
    {},
    set(),
    (1, [2.5, {"a": None, 3: ("b",)}], {4, 5}),
    OrderedDict(b=1, a=2),
    torch.Size([3, 4]),
]


@pytest.mark.parametrize("value", PLAIN, ids=repr)
def test_plain_values_arrive_as_they_were(value):
    result = through(value)
    assert result == value
    assert type(result) is type(value)
    assert repr(result) == repr(value)


@pytest.mark.parametrize("dtype", sorted(wire._DTYPES))
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (2, 3)])
def test_tensors_of_every_type_and_shape(dtype, shape):
    tensor = (torch.rand(shape) * 4).to(getattr(torch, dtype))
    result = through(tensor)
    assert result.dtype == tensor.dtype and result.shape == tensor.shape
    assert torch.equal(result.to(torch.complex128), tensor.to(torch.complex128))


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(12.0).reshape(3, 4).T,
        torch.arange(4.0).reshape(1, 4)[:, 0],
        torch.ones(1).expand(2, 5),
        torch.arange(10)[::3],
        torch.tensor([1 + 2j]).conj(),
        torch.eye(3).to_sparse(),
        torch.tensor([float("nan"), -float("inf"), -0.0]),
    ],
    ids=["transposed", "one entry", "expanded", "strided", "conjugate", "sparse", "nan"],
)
def test_tensors_of_every_layout(tensor):
    expected = tensor.to_dense() if tensor.is_sparse else tensor
    torch.testing.assert_close(through(tensor), expected.contiguous(), equal_nan=True)


def test_axes_lie_in_memory_as_they_did():
    x = torch.arange(24.0).reshape(2, 3, 4).permute(2, 0, 1)
    assert through(x).stride() == x.stride() and torch.equal(through(x), x)
    with pytest.raises(RuntimeError, match="view size is not compatible"):
        through(x).view(-1)
    W = nn.Parameter(x)
    W.grad = x + 1
    result = through(W)
    assert result.stride() == result.grad.stride() == x.stride()
    assert torch.equal(result.grad, W.grad)
    assert through(x[:, :, ::2]).is_contiguous()  # what lies between its entries does not cross


def test_a_leaf_brings_its_gradient():
    W = nn.Parameter(torch.ones(2, 3))
    W.grad = torch.full((2, 3), 5.0)
    result = through({"W": W})["W"]
    assert isinstance(result, nn.Parameter) and result.requires_grad and result.is_leaf
    assert torch.equal(result.grad, W.grad)
    x = through(torch.ones(2, requires_grad=True))
    assert x.requires_grad and x.grad is None and not isinstance(x, nn.Parameter)
    assert not through(nn.Parameter(torch.ones(2), requires_grad=False)).requires_grad


def test_what_comes_twice_stays_one():
    x = torch.ones(2)
    first, (second, third) = through([x, (x, torch.ones(2))])
    assert first is second and first is not third


def test_named_tuples_keep_name_and_fields():
    result = through(Pair(torch.ones(2), [1]))
    assert isinstance(result, tuple) and type(result).__name__ == "Pair"
    assert result.state == [1] and torch.equal(result.logits, torch.ones(2))
    assert result._replace(state=2).state == 2 and result._asdict()["state"] == [1]


def test_numpy():
    for value in [np.eye(2), np.float32(0.5), np.int64(7), np.float64(0.1), np.arange(6)[::-2]]:
        result = through(value)
        assert type(result) is type(value) and np.array_equal(result, value)


def test_generators_cross_by_state():
    generator = torch.Generator().manual_seed(5)
    torch.rand(3, generator=generator)
    result = through(generator)
    assert torch.equal(
        torch.rand(4, generator=result, dtype=torch.float64),
        torch.rand(4, generator=generator, dtype=torch.float64),
    )


@pytest.mark.parametrize(
    "value",
    [
        object(),
        lambda: 0,
        1 << 100_000,
        np.array(["text"]),
        torch.empty(1, dtype=torch.float64).expand(1 << 30),
        torch.empty(2, device="meta"),
        "x" * wire.HEADER_BYTES,
    ],
    ids=["object", "function", "huge int", "strings", "huge", "meta", "long text"],
)
def test_what_cannot_be_sent_is_refused(value):
    with pytest.raises(WireError):
        through(value)


def test_depth_is_bounded():
    inner = []
    for _ in range(wire.DEPTH + 2):
        inner = [inner]
    with pytest.raises(WireError):
        through(inner)
    endless = []
    endless.append(endless)
    with pytest.raises(WireError):
        through(endless)


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"\xff\xfe",
        b"[" * 100_000,
        b"9" * 10_000,
        [],
        {},
        {"tensors": {}},
        {"tensors": [spec()]},
        {"tensors": [spec(dtype="object")]},
        {"tensors": [spec(dtype=["float32"])]},
        {"tensors": [spec(shape=[-1])]},
        {"tensors": [spec(order=[])]},
        {"tensors": [spec(order=[False])]},
        {"tensors": [spec(order=["0"])]},
        {"tensors": [spec(shape=[1, 2], order=[1, 1])]},
        {"tensors": [spec(shape=[True])]},
        {"tensors": [spec(shape=[1 << 50])]},
        {"tensors": [spec(shape=[1 << 39, 1 << 39, 0], order=[0, 1, 2])]},
        {"tensors": [spec(shape=[0] * 100, order=[*range(100)])]},
        {"tensors": [spec(shape=[0], grad=7)]},
        {"tensors": [spec(shape=[0], grad=-1)]},
        {"tensors": [spec(shape=[0], dtype="int64", requires_grad=True)]},
        {"tensors": [spec(shape=[0], grad=1), spec(shape=[0, 1], order=[0, 1])]},
        {"tensors": [None]},
    ],
    ids=lambda header: str(header)[:60],
)
def test_lying_headers_are_refused(header):
    with pytest.raises(WireError):
        message(header)


@pytest.mark.parametrize(
    "tree",
    [
        {},
        [],
        ["tensor", 0],
        ["tensor", True],
        ["tensor", "0"],
        ["object", 1],
        ["call", "os.system"],
        ["dtype", "save"],
        ["dtype", "__class__"],
        ["int", "1" * 100_000],
        ["range", 1, 2, 0],
        ["range", 0, 1 << 40, 1],
        ["range", 0, ["int", str(1 << 90)], 1],
        ["generator", 0],
        ["set", "set", [], [["list", "list", [], []]]],
        ["dict", "dict", [], [1]],
        ["dict", "dict", [], [["list", "list", [], []], 1]],
        ["tuple", "a b", [], []],
        ["tuple", "A", ["__class__"], []],
        ["tuple", "A", ["class"], [1]],
        ["tuple", "A", ["a", "a"], [1, 2]],
        ["tuple", "A", ["a", "b"], [1]],
        ["tuple", "A", [f"a{n}" for n in range(101)], [0] * 101],
        ["tuple", "Size", [], ["a"]],
        ["list", "A", ["append"], []],
        ["list", "list", []],
        [[], []],
    ],
    ids=str,
)
def test_malformed_values_are_refused(tree):
    with pytest.raises(WireError):
        message({"tensors": []}).value(tree)


def test_deep_values_are_refused():
    tree = 1
    for _ in range(200):
        tree = ["list", "list", [], [tree]]
    with pytest.raises(WireError):
        message({"tensors": []}).value(tree)


def test_announced_lengths_cost_no_memory():
    with pytest.raises(WireError, match="too large"):
        wire.read(io.BytesIO(struct.pack("!IQ", 10, 1 << 60)))
    with pytest.raises(WireError, match="ends after"):
        wire.read(io.BytesIO(struct.pack("!IQ", 2, wire.BODY_BYTES) + b"{}"))
    assert wire.read(io.BytesIO(b"")) is None


def test_truth_values_are_zero_or_one():
    result = message({"tensors": [spec(dtype="bool")]}, b"\x00\x07").value(["tensor", 0])
    assert result.view(torch.uint8).tolist() == [0, 1]


def test_random_and_damaged_bytes_raise_nothing_else():
    draw = random.Random(0)
    encoder = Encoder()
    value = [PLAIN, torch.ones(3), Pair(1, 2.5), torch.Generator(), np.float32(1)]
    sound = encoder.message({"value": encoder.value(value)})
    for _ in range(1000):
        data = bytearray(sound if draw.random() < 0.9 else draw.randbytes(draw.randrange(100)))
        for _ in range(draw.randrange(1, 5) if data else 0):
            data[draw.randrange(min(len(data), 1500))] = draw.randrange(256)
        data = data[: draw.randrange(len(data) + 1)] if draw.random() < 0.2 else data
        try:
            result = wire.read(io.BytesIO(data))
            if result is not None:
                result.value(result.header["value"])
        except (WireError, KeyError):  # the key "value" itself may be damaged
            pass
