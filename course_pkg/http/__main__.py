"""Serve one of the models that come with the course.

python -m course_pkg.http
python -m course_pkg.http --notebook notebooks/14_serving/14_serving.ipynb
"""

import argparse
import ast
import asyncio
import json
import traceback
from pathlib import Path
from typing import Any

from course_pkg import serving
from course_pkg.data import small_llama
from course_pkg.engine.requests import EngineConfig, SamplingParams
from course_pkg.gpt import BPETokenizer
from course_pkg.http.server import serve
from course_pkg.inference.models import ServedLlama, shipped


def engine_of(notebook: Path) -> Any:
    """Take the class Engine out of a notebook: run its imports, definitions and constants only.

    Raises:
        SystemExit: the notebook cannot be read, its definitions fail, or there is no Engine.
    """
    from IPython.core.inputtransformer2 import TransformerManager  # who has no notebook needs none

    try:
        cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
        sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SystemExit(f"{notebook} cannot be read as a notebook: {error!r}") from error
    plain = TransformerManager().transform_cell  # for lines such as %matplotlib inline
    names: dict[str, Any] = {"__name__": notebook.stem}
    try:
        module = ast.parse("\n".join(map(plain, sources)))
        module.body = [statement for statement in module.body if _defines(statement)]
        # The name in brackets is no file's: a traceback would show lines of JSON.
        exec(compile(module, f"<{notebook.name}>", "exec"), names)
    except Exception as error:
        raise SystemExit(f"{notebook}: its definitions fail: {_told(error)}") from error
    if "Engine" not in names:
        raise SystemExit(f"{notebook} defines no Engine")
    return names["Engine"]


def try_out(engines: Any, model: ServedLlama, notebook: Path) -> None:
    """Serve one short request with an engine of its own, before others send any.

    Raises:
        SystemExit: that fails, because something is not written yet, or for another reason.
    """
    try:
        engine = engines(model, EngineConfig(8))
        number = engine.add([0], SamplingParams(max_tokens=2, temperature=1.0))
        for _ in range(2):
            engine.step()
            engine.take(number)
        engine.withdraw([number])
    except NotImplementedError as error:
        *_, (frame, _) = traceback.walk_tb(error.__traceback__)
        told = f"its Engine cannot serve yet: {frame.f_code.co_qualname} is not written"
        raise SystemExit(f"{notebook}: {told}; write what it needs, then try again") from error
    except Exception as error:
        told = f"its Engine fails at a first request: {_told(error)}"
        raise SystemExit(f"{notebook}: {told}") from error


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _defines(statement: ast.stmt) -> bool:
    if isinstance(statement, (ast.Assign, ast.AnnAssign)):
        return isinstance(statement.value, ast.Constant)
    return isinstance(statement, (ast.Import, ast.ImportFrom, ast.ClassDef, ast.FunctionDef))


def main() -> None:
    """Serve until the user interrupts."""
    parser = argparse.ArgumentParser(
        prog="python -m course_pkg.http", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--model", choices=["target", "draft"], default="target")
    parser.add_argument("--notebook", type=Path, help="a notebook that defines Engine: your own")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--blocks", type=int, default=512, help="of the cache")
    parser.add_argument("--block-size", type=int, default=16, help="slots in a block")
    parser.add_argument("--queue", type=int, default=256, help="how many sequences may wait")
    chosen = parser.parse_args()
    engines, model = serving.Engine, shipped(chosen.model)
    if chosen.notebook is not None:
        engines = engine_of(chosen.notebook)
        try_out(engines, model, chosen.notebook)
    engine = engines(model, EngineConfig(chosen.blocks, chosen.block_size))
    tokenizer = BPETokenizer(small_llama.merges())
    example = json.dumps({"model": chosen.model, "prompt": "## numpy.", "max_tokens": 40})

    def is_open(address: str) -> None:
        print(f"curl {address}/v1/completions -d '{example}'", flush=True)

    async def forever() -> None:
        await serve(
            engine, tokenizer, chosen.model, chosen.port, chosen.queue, is_open, asyncio.Event()
        )

    try:
        asyncio.run(forever())
    except KeyboardInterrupt:
        print("closed")
    except OSError as error:
        raise SystemExit(f"{error}: choose another port than {chosen.port} with --port") from error


if __name__ == "__main__":
    main()
