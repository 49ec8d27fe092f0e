"""What a student might build on right parts, for test_parts."""

import copy
import gc
import random
import socket

import torch
from torch import nn

from course_pkg.remote.messages import Encoder, read


def lstm_step(x, h, c, W, b):
    raise ValueError("wrong")


step = lstm_step


class BlockAllocator:
    def __init__(self, blocks):
        raise ValueError("wrong")


class BlockTable:
    pass


class FeedForward(nn.Module):
    pass


class Named(BlockAllocator):
    def allocate(self):
        return f"block {super().allocate()}"


class Wider(FeedForward):
    def __init__(self, D):
        super().__init__(D, 2 * D)
        self.scale = nn.Parameter(torch.ones(D))

    def forward(self, X):
        return super().forward(X) * self.scale


def last(X, h, c, W, b):
    for x in X.unbind(1):
        h, c = step(x, h, c, W, b)
    return h


def blocks():
    """Use, copy and change an allocator in the ways that a manager does."""
    one = BlockAllocator(3)
    held = one.references
    first = one.allocate()
    other = copy.deepcopy(one)
    one.references[first] += 1
    one.free(first)
    one.free(first)
    return held == one.references, one.available, other.available, other.references[first]


def refusals():
    found = []
    one = BlockAllocator(1)
    one.allocate()
    for act in (one.allocate, lambda: one.free(3), lambda: one.free(first="x")):
        try:
            act()
        except Exception as error:
            found.append(type(error).__name__)
    return found


def tables():
    table = BlockTable(4)
    slots = table.append(3, [5])
    fork = table.fork()
    table.append(2, [7])
    return slots, fork.length, table.blocks, fork.blocks, isinstance(fork, BlockTable)


def derived():
    return Named(2).allocate()


def wide(X):
    net = Wider(4).to(X.dtype)
    twin = copy.deepcopy(net)
    twin.load_state_dict(net.state_dict())
    Y = twin(X)
    Y.sum().backward()
    names = [name for name, parameter in twin.named_parameters() if parameter.grad is not None]
    return Y.detach(), X.grad is not None, sorted(names), torch.equal(Y, net(X))


def drawn():
    before = torch.get_rng_state()
    FeedForward(4)
    return not torch.equal(before, torch.get_rng_state())


def shapes():
    return lstm_step(*[torch.zeros(2)] * 5)


def objects():
    return lstm_step(object(), print, lambda: 1, nn.Linear(2, 2), random)


def flood():
    for _ in range(10_000):
        BlockAllocator(1)


def too_large():
    return BlockTable(torch.zeros(5_000_000))


def too_long():
    return BlockAllocator(10**9)


def ask(header):
    """Send what no stand-in would, over the connection that a student's code can find."""
    places = [o for o in gc.get_objects() if isinstance(o, socket.socket) and o.fileno() > 2]
    places[0].sendall(Encoder().message(header))
    return read(places[0].makefile("rb")).header["problem"]


def other_part():
    return ask({"question": "LSTM", "method": ""})


def other_topic():
    return ask({"question": "lstm_step", "topic": "gpt", "names": ["GPT"]})


def other_method():
    return ask({"question": "BlockAllocator", "method": "__init__"})


def no_fields():
    return ask({"question": "lstm_step"})


def merges(count):
    rng = random.Random(0)
    words = {rng.randbytes(200): 2 for _ in range(count // 500)}
    return byte_pair_merges(words, count)  # right, or not there


def scale(x):
    return 2 * x
