"""The engines: tokens per second, beside transformers' generate with the same weights."""

import functools

from course_pkg.inference.models import shipped
from course_pkg.inference.tuned import TunedEngine
from course_pkg.serving import Engine
from tests.benchmarks import serving
from tests.benchmarks.attention import DEVICE, ON_GPU
from tests.gpu.report.plan import SERVE, SMALL_SERVE
from tests.gpu.report.rows import attempt, row

SIZES = SERVE if ON_GPU else SMALL_SERVE


def main() -> None:
    """Serve the same requests with all, each of which has served others before."""
    model, longest = shipped("target").to(DEVICE), SIZES.prompt + SIZES.new
    theirs = serving.by_generate(serving.their_model())
    for draw in (serving.equal, serving.ragged):
        for count in SIZES.requests:
            requests = functools.partial(draw, count, SIZES.prompt, SIZES.new)
            with attempt(f"{count} requests, {draw.__name__}"):
                runs = {"transformers' generate": theirs}
                for kind in (Engine, TunedEngine):
                    runs[kind.__name__] = serving.by_engine(kind, model, count, longest)
                for who, (rate, others) in serving.measure(runs, requests, rounds=1).items():
                    row(f"{who}, {count} requests, {draw.__name__}", round(rate), "tokens/s",
                        other_texts=others)  # fmt: skip


if __name__ == "__main__":
    main()
