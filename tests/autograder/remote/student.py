"""What a student might write, some of it right, for test_remote and test_remote_trouble."""

import ctypes
import gc
import os
import signal
import subprocess
import sys
import time

import torch
from torch import nn

number = 5


def scale(x, factor):
    return x * factor


def echo(value, **others):
    return value, others


def numbers(count):
    yield from range(count)


def products(x):
    for factor in range(1, 4):
        yield factor * x
    raise KeyError("no more")


class Steps:
    def __init__(self):
        self.taken = 0

    def run(self, count):
        for self.taken in range(1, count + 1):
            yield self.taken


def several(x, y, rows):
    product = x * y
    return product, rows + 1, [x[rows].exp(), product]


def new_leaf(values):
    return torch.tensor(values, requires_grad=True)


class Layer(nn.Module):
    def __init__(self, D, H):
        super().__init__()
        self.H = H
        self.W = nn.Parameter(torch.randn(H, D))

    def forward(self, x):
        return x @ self.W.T

    def row(self, number):
        with torch.no_grad():
            return self.W[number]  # a leaf that requires a gradient, as torch has it

    def norm_of_grad(self):
        return self.W.grad.norm().item()

    def learn(self):
        self.zero_grad()
        self.W.sum().backward()


def apply(layer, inputs):
    return layer(inputs[0])


def grad_mode():
    return torch.is_grad_enabled()


def clip(parameters, longest):
    return nn.utils.clip_grad_norm_(parameters, longest)


def zero(x):
    x[1].zero_()


def empty(value):
    inner = value if isinstance(value, list) else next(iter(value.values()))
    inner.pop()


def look_at(value):
    return sorted(map(str, value))


def draw(count, generator=None):
    return torch.rand(count, generator=generator), torch.rand(count, generator=generator)


def fails(size):
    if size % 2:
        raise ValueError(f"the size must be even, got {size}")


def leaves(status):
    sys.exit(status)


def leaves_at_once(status):
    os._exit(status)


def crashes():
    ctypes.string_at(0)


def interrupts():
    raise KeyboardInterrupt


def stub():
    raise NotImplementedError


def uses_stub():
    return stub()


def broken_gradient(x):
    y = x.exp()
    z = y * 1
    y.zero_()
    return z + y


def huge():
    return torch.zeros(1).expand(1 << 30)


def deep():
    value = []
    for _ in range(100):
        value = [value]
    return value


def prints():
    print("x" * 100_000)
    os.write(1, b"y" * 100_000)
    sys.stderr.write("z" * 100_000)
    try:
        return input()
    except EOFError:
        return "no input"


def loops():
    while True:
        pass


def stalls():
    yield 1
    loops()


def loops_on():
    while True:
        try:
            time.sleep(0.01)
        except BaseException:
            pass


def pid():
    return os.getpid()


def starts_process():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]).pid


def count():
    gc.collect()
    return sum(isinstance(each, Layer) for each in gc.get_objects())


class Tally:
    def __init__(self):
        self.total = 0

    def add(self, count=1):
        self.total += count
        return self.total

    def spoil(self):
        self.add = self.total
