"""Launch Triton kernels: compiled for tensors on a GPU, interpreted for those on the CPU.

The interpreter runs a kernel with the real addresses of the tensors, and a wrong one would bring
the whole process down. So it runs in a process of its own, on copies with a fence around each: to
read or write outside ends that process, and the caller gets an error that names the line.

Whether Triton interprets is decided when it is imported, so this module imports it for all: it
compiles where notebooks use a GPU. There, the process that interprets imports it a second time.
"""

import contextlib
import ctypes
import faulthandler
import functools
import gc
import importlib
import inspect
import linecache
import math
import mmap
import os
import re
import resource
import signal
import sys
import traceback
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from course_pkg.tools.huge_pages import use_huge_pages
from course_pkg.tools.tiles import tiles
from course_pkg.tools.train import device


def _interpret_from_now_on() -> None:
    """Make Triton interpret from its next import on."""
    os.environ["TRITON_INTERPRET"] = "1"
    for name in list(sys.modules):  # torch may have imported it; it must start afresh
        if name.partition(".")[0] == "triton" and not name.startswith("triton._C"):
            del sys.modules[name]


INTERPRETED = device().type != "cuda"  # all kernels; else those of tensors on the CPU
if INTERPRETED and os.environ.get("TRITON_INTERPRET") != "1":
    _interpret_from_now_on()
try:
    import triton
    import triton.language as tl
except ImportError:  # there are no packages of it for macOS and Windows
    triton = None
    tl = SimpleNamespace(constexpr=object)

SIDE = 16  # of a tile in the interpreter; on a GPU, tiles.json has the sides
SMALLEST = 16  # side of the matrices that tl.dot takes
SHORTEST_PART = 256  # positions; below, starting a program costs more than it saves


class KernelError(RuntimeError):
    """A kernel failed in the interpreter; the text says how and on which line."""


def why_not() -> str | None:
    """Say why Triton kernels cannot run here; None if they can."""
    return "Triton is not installed" if triton is None else None


def kernel(launch: Callable) -> Callable[[Callable], Callable]:
    """Make a Triton kernel a function of tensors.

    Args:
        launch: called as launch(run, *args, **kwargs), with the function's own arguments. It calls
            run(grid, inputs, outputs, *numbers, **constants) and returns what came out.
    Returns:
        A decorator for the kernel.
    """
    _, *parameters = inspect.signature(launch).parameters.values()

    def decorate(program: Callable) -> Callable:
        jitted = None if triton is None else triton.jit(program)
        if INTERPRETED and jitted is not None:
            _warm_up()  # now, since calls of a student's kernel have a time limit

        @functools.wraps(program)
        def launched(*args, **kwargs):
            if "NotImplementedError" in program.__code__.co_names:
                program(*[None] * program.__code__.co_argcount)  # the stub raises
            if triton is None:
                raise KernelError(f"{program.__name__} needs Triton, which is not installed")
            return launch(functools.partial(_run, jitted), *args, **kwargs)

        launched.__signature__ = inspect.Signature(parameters)
        return launched

    return decorate


def launch_flash(
    run: Callable,
    Q: Float[Tensor, "B H T D_h"],
    K: Float[Tensor, "B H N D_h"],
    V: Float[Tensor, "B H N D_h"],
    causal: bool = False,
) -> tuple[Float[Tensor, "B H T D_h"], Float[Tensor, "B H T"]]:
    """Launch one program for each tile of queries of each head; return Y and s.

    Raises:
        ValueError: kernels do not take tensors of this dtype, or there are too many numbers for
            addresses of 32 bits.
    """
    _must_be_taken(Q)
    if max(Q.numel(), K.numel()) >= 2**31:
        raise ValueError(f"Q and K must have fewer than 2³¹ numbers, got {Q.shape} and {K.shape}")
    B, H, T, D_h = Q.shape
    N = K.shape[2]
    settings = tiles("flash", Q.dtype) if Q.is_cuda else {"ROWS": SIDE, "COLUMNS": SIDE}
    Y = torch.empty_like(Q, memory_format=torch.contiguous_format)
    s = Q.new_empty(B, H, T, dtype=torch.float32)
    run(
        (math.ceil(T / settings["ROWS"]), B * H),
        [Q, K, V],
        [Y, s],
        *(T, N, 1 / math.sqrt(D_h)),
        D_h=D_h,
        WIDTH=_power_of_2(D_h),
        CAUSAL=causal,
        **settings,
    )
    return Y, s


def launch_paged(
    run: Callable,
    Q: Float[Tensor, "B H D_h"],
    K: Float[Tensor, "G N S D_h"],
    V: Float[Tensor, "G N S D_h"],
    tables: Int[Tensor, "B M"],
    lengths: Int[Tensor, "B"],
    parts: int | None = None,
) -> Float[Tensor, "B H D_h"]:
    """Launch a program for each sequence, head of keys and values, and part of the positions.

    The parts' outputs are then averaged with weights exp(s). More parts keep more of a GPU busy;
    with None there are as many as that takes.

    Raises:
        ValueError: kernels do not take tensors of this dtype.
    """
    _must_be_taken(Q)
    B, H, D_h = Q.shape
    G, N, S, _ = K.shape
    M = tables.shape[1]
    settings = tiles("paged", Q.dtype) if Q.is_cuda else {"COLUMNS": SIDE}
    each = settings.pop("programs", None)
    if parts is None:
        parts = 1 if each is None else _enough_parts(each, B * G, M * S)
    Y = Q.new_empty(parts, B, H, D_h, dtype=torch.float32)
    s = Y.new_empty(parts, B, H)
    run(
        (B, G, parts),
        [Q, K, V, tables.long(), lengths.long()],  # addresses are computed with 64 bits
        [Y, s],
        *(N, M, math.ceil(M * S / parts), 1 / math.sqrt(D_h)),
        H=H,
        G=G,
        S=S,
        D_h=D_h,
        SHARING=_power_of_2(H // G),
        WIDTH=_power_of_2(D_h),
        **settings,
    )
    if parts == 1:
        return Y[0].to(Q.dtype)
    if not Q.is_cuda:
        return (torch.softmax(s, dim=0)[..., None] * Y).sum(dim=0).to(Q.dtype)
    merged = Q.new_empty(B, H, D_h)
    merge(Y, s, merged)
    return merged


def merge(
    Y: Float[Tensor, "parts B H D_h"],
    s: Float[Tensor, "parts B H"],
    merged: Float[Tensor, "B H D_h"],
) -> None:
    """Average the outputs of parts with weights exp(s): in one launch, where torch takes four."""
    parts, B, H, D_h = Y.shape
    sides = {"D_h": D_h, "PARTS": _power_of_2(parts, 1), "WIDTH": _power_of_2(D_h)}
    _run(_merger(), (B * H,), [Y, s], [merged], parts, **sides)


@functools.cache
def _merger():
    return triton.jit(_merge_parts)


def _merge_parts(Y, s, merged, parts, D_h: tl.constexpr, PARTS: tl.constexpr, WIDTH: tl.constexpr):
    row, rows = tl.program_id(0), tl.num_programs(0)  # a head of a sequence
    p, d = tl.arange(0, PARTS), tl.arange(0, WIDTH)
    sums = tl.load(s + p * rows + row, mask=p < parts, other=float("-inf"))
    weights = tl.exp(sums - tl.max(sums, axis=0))
    weights = weights / tl.sum(weights, axis=0)
    inside = (p[:, None] < parts) & (d[None, :] < D_h)
    outputs = tl.load(Y + (p[:, None] * rows + row) * D_h + d[None, :], mask=inside, other=0.0)
    tl.store(merged + row * D_h + d, tl.sum(weights[:, None] * outputs, axis=0), mask=d < D_h)


def _must_be_taken(Q: Tensor) -> None:
    """Refuse numbers that kernels cannot take; the interpreter multiplies bfloat16 wrongly."""
    taken = [torch.float32, torch.float16] + [torch.bfloat16] * Q.is_cuda
    if Q.dtype not in taken:
        names = ", ".join(map(str, taken))
        raise ValueError(f"kernels take {names} on {Q.device.type}, got {Q.dtype}")


def _enough_parts(each: int, programs: int, positions: int) -> int:
    """Cut positions so that each multiprocessor gets some programs, and each of them some work."""
    wanted = each * torch.cuda.get_device_properties().multi_processor_count
    return max(1, min(math.ceil(wanted / programs), positions // SHORTEST_PART))


def _power_of_2(size: int, smallest: int = SMALLEST) -> int:
    return max(smallest, 1 << (size - 1).bit_length())


def _run(jitted, grid, inputs, outputs, *numbers, **constants) -> None:
    if outputs[0].is_cuda:
        inputs = [tensor.contiguous() for tensor in inputs]
        jitted[grid](*inputs, *outputs, *numbers, **constants)
    else:
        _interpret(jitted, grid, inputs, outputs, *numbers, **constants)


def _interpret(jitted, grid, inputs, outputs, *numbers, **constants) -> None:
    """Run a kernel in a fork of this process, and copy its outputs out of what both share."""
    if INTERPRETED:
        with contextlib.suppress(Exception):  # what Triton cannot rewrite, the fork reports
            jitted.rewrite()
    ours = [_fenced(tensor.detach()) for tensor in (*inputs, *outputs)]
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reader)
            gc.disable()  # it would copy pages that both share
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            torch.set_num_threads(1)
            np.seterr(all="ignore")  # log(0) is -∞ on a GPU too, without a warning
            with open(writer, "w", errors="replace") as pipe:
                faulthandler.enable(pipe, all_threads=False)
                kernel = jitted if INTERPRETED else _interpreted(jitted.fn)
                _attempt(lambda: kernel[grid](*ours, *numbers, **constants), pipe)
                faulthandler.disable()
        finally:
            os._exit(0)
    try:
        os.close(writer)
        with open(reader, errors="replace") as pipe:
            text = pipe.read()
    finally:  # even when the caller's time is up
        os.kill(child, signal.SIGKILL)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if text or status not in (0, -signal.SIGKILL):
        raise KernelError(_explain(jitted.fn, text, status))
    for tensor, copy in zip(outputs, ours[len(inputs) :], strict=True):
        tensor.copy_(copy)


def _interpreted(program: Callable) -> object:
    """Make a kernel that is interpreted, in a fork of a process whose Triton compiles."""
    _interpret_from_now_on()
    jit = importlib.import_module("triton").jit
    names = program.__globals__
    for name, value in list(names.items()):
        if inspect.ismodule(value) and value.__name__.partition(".")[0] == "triton":
            names[name] = importlib.import_module(value.__name__)
        elif isinstance(value, triton.JITFunction):  # a part of the kernel
            names[name] = jit(value.fn)
    return jit(program)


@functools.cache
def _warm_up() -> None:
    """Do once what every fork would repeat: let Triton import and rewrite what kernels call.

    Forks are also cheaper afterwards. In a process of gigabytes it takes seconds.
    """

    def everything(x):
        i = tl.arange(0, 16)
        tile = tl.load(x + tl.zeros((16, 16), tl.int32) + i)
        tile = tl.where(tile > tl.max(tile, axis=1), tl.sum(tile, axis=1), tl.min(tile, axis=0))
        tl.store(x + tl.cdiv(i, 16), tl.sum(tl.dot(tile, tile), axis=0))

    triton.jit(everything)[(1,)](torch.zeros(16))
    use_huge_pages()


def _attempt(action: Callable[[], None], pipe) -> None:
    try:
        action()
    except BaseException as error:
        while isinstance(error.__cause__, Exception):  # Triton wraps what the kernel raised
            error = error.__cause__
        pipe.write(f"{type(error).__name__}: {error}\n")
        for frame in reversed(traceback.extract_tb(error.__traceback__)):
            pipe.write(f'  File "{frame.filename}", line {frame.lineno} in {frame.name}\n')


def _explain(program: Callable, text: str, status: int) -> str:
    """Put a crash into words: what happened, and on which line of the kernel."""
    happened = text.partition("\n  File ")[0].strip() or f"the process ended with {status}"
    if text.startswith("Fatal Python error: Segmentation") or "Bus error" in happened:
        happened = "it reads or writes outside its tensors: is a mask missing or wrong?"
    file = re.escape(program.__code__.co_filename)
    found = re.search(rf'  File "{file}", line (\d+) in', text)
    line = linecache.getline(program.__code__.co_filename, int(found[1])).strip() if found else ""
    return happened + (f"\nin line {found[1]}: {line}" if line else "")


def _fenced(tensor: Tensor) -> Tensor:
    """Copy a tensor into memory that forks share, with pages that nobody may touch around it."""
    size, page = tensor.numel() * tensor.element_size(), mmap.PAGESIZE
    end = page + math.ceil(size / page) * page
    area = mmap.mmap(-1, end + page)
    address = ctypes.addressof(ctypes.c_char.from_buffer(area))
    for fence in (address, address + end):
        ctypes.CDLL(None).mprotect(ctypes.c_void_p(fence), page, 0)
    copy = torch.frombuffer(area, dtype=tensor.dtype, count=tensor.numel(), offset=end - size)
    return copy.view(tensor.shape).copy_(tensor)
