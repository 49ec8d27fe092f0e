"""Claims of an experiment: what its text promises, compared with what came out."""

import html
import math
import os
import sys
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from course_pkg.checking.notebook import prediction, seeds
from course_pkg.checking.telling.failure import numbers
from course_pkg.checking.telling.report import WIDTH

_HINT = (
    "With the reference it holds at seed 0. If all checks above pass, your code is probably not to "
    "blame: look at the figure, and try another seed."
)


Numbers = float | Sequence[float] | Tensor
Bound = Numbers | Mapping[str, Numbers]


class ClaimFailed(AssertionError):
    """A claim does not hold, in a test."""


def claim(
    what: str,
    value: bool | Numbers,
    *,
    above: Bound | None = None,
    below: Bound | None = None,
    equals: Numbers | None = None,
    why: str | None = None,
) -> None:
    """Compare what an experiment found with what its text promises, and say what came out.

    A bound is what the cheapest thing without the idea gives, its control: {"word frequencies":
    5.32}. A number that somebody has chosen says why it is that one: "chance is 1/10", "published".

    Figures that are not shown yet are shown first, then what the student has predicted. A claim
    that does not hold is a sentence, not an exception: an unlucky seed or a slow machine is not the
    student's mistake. Under pytest and nbval it is an exception as well.

    Example:
        >>> claim("BLEU for 4 to 7 words", 95.2, above={"word by word": 71.4})
        ✓ BLEU for 4 to 7 words: 95.2, above 71.4 (word by word)

    Args:
        what: names the value; without bounds, it is the whole statement.
        value: what came out. If it is several numbers, each must keep the bounds; if no bounds are
            given, it says whether the statement is true.
        above, below: the value must be larger than the first, and smaller than the second; than all
            numbers of a dict of controls.
        equals: the value must be exactly this.
        why: where a bound is from that is no control.
    Raises:
        ClaimFailed: the claim does not hold, in a test.
    """
    given = torch.as_tensor(value, dtype=torch.float64).detach().cpu()
    bounds: dict[str, Tensor] = {}
    controls: dict[str, dict[str, Tensor]] = {}
    for relation, bound in (("above", above), ("below", below), ("equal to", equals)):
        if bound is not None:
            bounds[relation], controls[relation] = _bound(relation, bound, given)
    margins = {relation: _margin(relation, given, bound) for relation, bound in bounds.items()}
    if bounds:
        holds = all(_holds(relation, margin) for relation, margin in margins.items())
        place = _closest(margins)
        shown = given.flatten()[place].item()
        limits = {relation: _at(place, bound) for relation, bound in bounds.items()}
        named = {relation: _beside(place, each) for relation, each in controls.items()}
        text = _sentence(what, shown, limits, named, given.numel(), holds)
        text += f"; {why}" if why else ""
    else:
        holds = shown = bool(value)
        named = {}
        text = what if holds else f"expected: {what}; this is not so"
    sides = [margin.min().item() for relation, margin in margins.items() if relation != "equal to"]
    found: dict[str, Any] = {"value": _json(shown), "margin": _json(min(sides, default=None))}
    beside = {name: _json(number) for each in named.values() for name, number in each.items()}
    found |= {"beside": beside} if beside else {}
    found |= {"why": why} if why else {}
    _show_figures()
    cell = sys._getframe(1).f_code.co_filename  # IPython gives each cell a name of its own
    if predicted := prediction.prediction_for(cell, what):
        _show(prediction.as_text(predicted), prediction.as_html(predicted), {})
    band = seeds.band(what) if sides else None
    ticks = [number for each in named.values() for number in each.values()]
    _publish(
        f"{'✓' if holds else '✗'} {text}",
        {"what": what, "holds": holds, **found},
        None if band is None else seeds.strip(band, shown, [*limits.values(), *ticks]),
    )
    if not holds and "PYTEST_VERSION" in os.environ:
        raise ClaimFailed(text)


def _bound(relation: str, bound: Bound, given: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """Give the bound of each value, and the numbers of controls by their names."""
    if not isinstance(bound, Mapping):
        return torch.as_tensor(bound, dtype=torch.float64).detach().cpu().expand_as(given), {}
    if not bound:
        raise ValueError(f"no control is given: {relation} what?")
    controls = {name: _bound(relation, number, given)[0] for name, number in bound.items()}
    stacked = torch.stack([*controls.values()])
    return stacked.amax(dim=0) if relation == "above" else stacked.amin(dim=0), controls


def _margin(relation: str, given: Tensor, bound: Tensor) -> Tensor:
    """How far each value is from its bound; negative on the wrong side."""
    match relation:
        case "above":
            return given - bound
        case "below":
            return bound - given
    return -(given - bound).abs()


def _holds(relation: str, margin: Tensor) -> bool:
    # A comparison with NaN is false, so NaN keeps no bound.
    return bool((margin == 0).all() if relation == "equal to" else (margin > 0).all())


def _closest(margins: dict[str, Tensor]) -> int:
    """The place of the value that is closest to one of its bounds, or furthest beyond it."""
    return int(torch.stack([*margins.values()]).nan_to_num(-torch.inf).amin(dim=0).argmin())


def _at(place: int, numbers: Tensor) -> float:
    return numbers.flatten()[place].item()


def _beside(place: int, controls: dict[str, Tensor]) -> dict[str, float]:
    """The numbers of controls beside the value that is shown."""
    return {name: _at(place, each) for name, each in controls.items()}


def _sentence(
    what: str,
    shown: float,
    limits: dict[str, float],
    named: dict[str, dict[str, float]],
    count: int,
    holds: bool,
) -> str:
    """Give a value and its bounds, with all controls and digits enough to tell them apart."""
    each = []
    for relation, limit in limits.items():
        controls = named[relation].items()
        nearest_first = sorted(controls, key=lambda item: abs(item[1] - limit))
        texts = [f"{numbers(shown, number)[1]} ({name})" for name, number in nearest_first]
        each.append(f"{relation} {', '.join(texts) or numbers(shown, limit)[1]}")
    expected = " and ".join(each)
    came_out = numbers(next(iter(limits.values())), shown)[1]
    of = f" (the {'closest' if holds else 'worst'} of {count})" if count > 1 else ""
    if holds:
        return f"{what}: {came_out}, {expected}{of}"
    return f"{what}: expected {expected}, came out {came_out}{of}"


def _json(number: float | None) -> float | str | None:
    # Notebooks are JSON, which has neither NaN nor infinity.
    return number if number is None or math.isfinite(number) else str(number)


def _show_figures() -> None:
    """Show figures now, above the claim; Jupyter would show them at the end of the cell."""
    pyplot = sys.modules.get("matplotlib.pyplot")
    if pyplot is not None and "inline" in pyplot.get_backend():
        pyplot.show()


def _publish(line: str, found: dict, among: tuple[str, str] | None) -> None:
    """Show a claim, and below it where its value lies among those of other seeds."""
    lines = [line, *([] if among is None else among[:1]), *([] if found["holds"] else [_HINT])]
    text = "\n".join(textwrap.fill(part, WIDTH, subsequent_indent="  ") for part in lines)
    # Nearer to the text's colour than JupyterLab's own colours, which are too pale on white.
    colour = "--jp-success-color1, green" if found["holds"] else "--jp-error-color1, red"
    mark = f"<span style='color: color-mix(in srgb, var({colour}) 75%, currentColor)'>{line[0]}"
    hint = "" if found["holds"] else f"<div>{html.escape(_HINT)}</div>"
    drawn = "" if among is None else among[1]
    page = f"<div>{mark}</span>{html.escape(line[1:])}</div>{drawn}{hint}"
    _show(text, page, {"claim": found})


def _show(text: str, page: str, metadata: dict) -> None:
    """Show a page in a notebook, and a text elsewhere."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    if shell is None:
        print(text)
    else:
        shell.display_pub.publish({"text/plain": text, "text/html": page}, metadata=metadata)
