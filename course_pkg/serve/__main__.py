"""Serve one of the models that come with the course.

python -m course_pkg.serve
python -m course_pkg.serve --notebook notebooks/13_serving/13_serving.ipynb
"""

import argparse
import ast
import asyncio
import json
from pathlib import Path
from typing import Any

from course_pkg import serving
from course_pkg.data import small_llama
from course_pkg.gpt import BPETokenizer
from course_pkg.inference.models import shipped
from course_pkg.serve.door import serve


def engine_of(notebook: Path) -> Any:
    """Take the class Engine out of a notebook: run its imports, definitions and constants only."""
    from IPython.core.inputtransformer2 import TransformerManager  # who has no notebook needs none

    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    plain = TransformerManager().transform_cell  # for lines such as %matplotlib inline
    code = "\n".join(plain("".join(c["source"])) for c in cells if c["cell_type"] == "code")
    module = ast.parse(code)
    module.body = [statement for statement in module.body if _defines(statement)]
    names: dict[str, Any] = {"__name__": notebook.stem}
    exec(compile(module, str(notebook), "exec"), names)
    if "Engine" not in names:
        raise SystemExit(f"{notebook} defines no Engine")
    return names["Engine"]


def _defines(statement: ast.stmt) -> bool:
    if isinstance(statement, (ast.Assign, ast.AnnAssign)):
        return isinstance(statement.value, ast.Constant)
    return isinstance(statement, (ast.Import, ast.ImportFrom, ast.ClassDef, ast.FunctionDef))


def main() -> None:
    """Serve until the user interrupts."""
    parser = argparse.ArgumentParser(
        prog="python -m course_pkg.serve", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--model", choices=["target", "draft"], default="target")
    parser.add_argument("--notebook", type=Path, help="a notebook that defines Engine: your own")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--blocks", type=int, default=512, help="of the cache")
    parser.add_argument("--block-size", type=int, default=16, help="slots in a block")
    parser.add_argument("--queue", type=int, default=256, help="how many sequences may wait")
    chosen = parser.parse_args()
    engines = serving.Engine if chosen.notebook is None else engine_of(chosen.notebook)
    engine = engines(shipped(chosen.model), chosen.blocks, chosen.block_size)
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
