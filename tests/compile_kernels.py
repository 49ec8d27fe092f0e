"""Compile the kernels of flash_kernels for an H100, which needs none: print what they take.

    python -m tests.compile_kernels [--choices]

Triton is imported before the course tells it to interpret, so that this is a process of its own.
One line of JSON: for each kernel, type of numbers and head size, the bytes of fast memory; with
--choices also for all settings among which `make gpu-report` chooses.
"""

import importlib
import inspect
import json
import os
import sys

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

H100 = GPUTarget("cuda", 90, 32)
POINTERS = {"Q", "K", "V", "Y", "s", "tables", "lengths"}


def fast_memory(kernel, dtype: str, D_h: int, settings: dict[str, int]) -> int:
    """Compile a kernel for one type of numbers and head size; return its bytes of fast memory."""
    program = inspect.unwrap(kernel)
    names = list(inspect.signature(program).parameters)
    constants = {"D_h": D_h, "WIDTH": D_h, "H": 32, "G": 8, "S": 16, "SHARING": 16}
    constants |= {"CAUSAL": True, **settings}
    options = {name: settings[name] for name in ("num_warps", "num_stages")}
    kinds = dict.fromkeys("QKVY", f"*{dtype}") | dict.fromkeys(["tables", "lengths"], "*i64")
    kinds |= {"s": "*fp32", "scale": "fp32"} | dict.fromkeys(["T", "N", "M", "span"], "i32")
    if "tables" in names:
        kinds["Y"] = "*fp32"
    signature = {name: kinds.get(name, "constexpr") for name in names}
    aligned = {
        (names.index(name),): [["tt.divisibility", 16]] for name in names if name in POINTERS
    }
    own = {name: value for name, value in constants.items() if name in names}
    source = ASTSource(JITFunction(program), signature, own, aligned)
    return triton.compile(source, target=H100, options=options).metadata.shared


def main() -> None:
    """Print the bytes of fast memory of all kernels."""
    os.environ["TRITON_INTERPRET"] = "1"  # as if the course had set it before Triton's import
    from course_pkg.tools import launch

    launch._warm_up = lambda: None  # this Triton cannot interpret
    from autograder.alternatives import ALTERNATIVES
    from course_pkg.flash_kernels import triton_flash_forward, triton_paged_decode
    from course_pkg.tools.tiles import table
    from tests.gpu.report.tune import CHOICES

    importlib.import_module("autograder.assignments.flash_kernels.alternatives")  # registers them
    os.environ["TRITON_INTERPRET"] = "0"
    choices = CHOICES if "--choices" in sys.argv else dict.fromkeys(CHOICES, ())
    kernels = {"flash": triton_flash_forward, "paged": triton_paged_decode}
    taken = {
        f"{kernel.__name__} {dtype} 128 {settings}": fast_memory(kernel, dtype, 128, settings)
        for name, kernel in kernels.items()
        for dtype, size in (("fp16", 2), ("fp32", 4))
        for settings in (table()[f"{name}, {size} bytes"], *(choices[name] if size == 2 else ()))
    }
    settings = table()["flash, 2 bytes"]
    for exercise, kernels in ALTERNATIVES.items():
        if exercise.name.startswith("triton_"):
            for kernel in kernels:
                taken[f"{kernel.__name__} fp16 64"] = fast_memory(kernel, "fp16", 64, settings)
    print(json.dumps(taken))


if __name__ == "__main__":
    main()
