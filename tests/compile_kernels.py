"""Compile the kernels of flash_kernels for an H100, which needs none: print what they take.

    python -m tests.compile_kernels

Triton is imported before the course tells it to interpret, so that this is a process of its own.
One line of JSON: for each kernel, type of numbers and head size, the bytes of fast memory.
"""

import importlib
import inspect
import json
import os

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

H100 = GPUTarget("cuda", 90, 32)
POINTERS = {"Q", "K", "V", "Y", "s", "tables", "lengths"}


def fast_memory(kernel, dtype: str, D_h: int) -> int:
    """Compile a kernel for one type of numbers and head size; return its bytes of fast memory."""
    from course_pkg.tools.launch import SIDE_ON_GPU

    program = inspect.unwrap(kernel)
    names = list(inspect.signature(program).parameters)
    constants = {"D_h": D_h, "WIDTH": D_h, "H": 32, "G": 8, "S": 16, "SHARING": 16}
    constants |= {"ROWS": SIDE_ON_GPU, "COLUMNS": SIDE_ON_GPU, "CAUSAL": True}
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
    return triton.compile(source, target=H100).metadata.shared


def main() -> None:
    """Print the bytes of fast memory of all kernels."""
    os.environ["TRITON_INTERPRET"] = "1"  # as if the course had set it before Triton's import
    from course_pkg.tools import launch

    launch._warm_up = lambda: None  # this Triton cannot interpret
    from course_pkg.flash_kernels import triton_flash_forward, triton_paged_decode
    from tests.alternatives import ALTERNATIVES

    importlib.import_module("tests.alternatives.flash_kernels")  # registers them
    os.environ["TRITON_INTERPRET"] = "0"
    taken = {
        f"{kernel.__name__} {dtype} {D_h}": fast_memory(kernel, dtype, D_h)
        for kernel in (triton_flash_forward, triton_paged_decode)
        for dtype, D_h in (("fp16", 128), ("fp32", 128))
    }
    for exercise, kernels in ALTERNATIVES.items():
        if exercise.name.startswith("triton_"):
            for kernel in kernels:
                taken[f"{kernel.__name__} fp16 64"] = fast_memory(kernel, "fp16", 64)
    print(json.dumps(taken))


if __name__ == "__main__":
    main()
