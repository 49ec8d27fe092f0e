"""One training loop for the whole course: Adam, gradient clipping, a progress bar on stdout."""

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from tqdm import tqdm

from course_pkg.tools.threads import one_thread


class DeviceError(RuntimeError):
    """COURSE_DEVICE asks for something that does not exist."""


@dataclass
class History:
    """What a training run leaves behind.

    Attributes:
        losses: the loss of every step, measured before the step.
        metrics: what `evaluate` found after the last step.
    """

    losses: list[float] = field(default_factory=list)
    metrics: dict[str, float] = field(default_factory=dict)


class _Bar(tqdm):
    monitor_interval = 0  # no thread that redraws at a time of its own choice


def progress(steps: int, label: str = "") -> tqdm:
    """Make a progress bar on stdout, for a training loop of your own.

    It redraws ten times, whatever the speed.

    Example:
        >>> for step in progress(400, "RNN"):
        ...     ...

    Args:
        steps: how many steps there are to take.
        label: what the bar says on its left.
    Returns:
        An iterable over the steps, from 0.
    """
    return _Bar(
        range(steps),
        desc=label,
        file=sys.stdout,
        bar_format="{desc}  {bar:20}  {n_fmt}/{total_fmt}{postfix}",
        mininterval=0,
        miniters=max(steps // 10, 1),
    )


def fit(
    model: nn.Module,
    batches: Callable[[torch.Generator], tuple],
    loss: Callable[..., Tensor],
    *,
    steps: int,
    lr: float | Callable[[int], float],
    clip: float | None = None,
    evaluate: Callable[[nn.Module], dict[str, float]] | None = None,
    seed: int = 0,
    label: str = "",
) -> History:
    """Train a model in place with Adam, with one torch thread and randomness of its own.

    With one thread small models train faster, and to the same numbers on every machine of the
    same kind. When training ends, the global random state is as it was before.

    Example:
        >>> history = fit(
        ...     model,
        ...     lambda generator: adding_problem(32, 50, generator),
        ...     lambda model, X, y: functional.mse_loss(model(X), y),
        ...     steps=400, lr=0.01, clip=1.0, label="RNN",
        ... )

    Args:
        model: the model; it is left in evaluation mode.
        batches: draws one batch, a tuple; its tensors are moved to the model's device.
        loss: computes the loss to minimise, a scalar, from the model and a batch's members.
        steps: how many steps to take.
        lr: Adam's learning rate; a schedule gives that of each step, from 1 to `steps`.
        clip: the largest norm that the gradient of all parameters may have; no limit when None.
        evaluate: measures named metrics on the trained model; it runs without gradients.
        seed: seeds the generator of the batches, and dropout.
        label: what the bar says on its left.
    Returns:
        The losses and the metrics.
    Raises:
        ValueError: steps is less than 1, lr or clip is not positive, the model has no
            parameters, or the loss is not a scalar.
    """
    parameters = list(model.parameters())
    if steps < 1:
        raise ValueError(f"steps must be at least 1, got {steps}")
    rate = lr if callable(lr) else lambda step: lr
    if not rate(1) > 0 or (clip is not None and not clip > 0):
        raise ValueError(f"lr and clip must be positive, got lr={rate(1)} and clip={clip}")
    if not parameters:
        raise ValueError("the model has no parameters to train")
    place = parameters[0].device
    history = History()
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(parameters, lr=rate(1), fused=True)
    with (
        one_thread(),
        progress(steps, label) as bar,
        torch.random.fork_rng([place] if place.type == "cuda" else []),
    ):
        torch.manual_seed(seed)
        model.train()
        for step in range(1, steps + 1):
            batch = [_move(member, place) for member in batches(generator)]
            optimizer.param_groups[0]["lr"] = rate(step)
            optimizer.zero_grad()
            value = loss(model, *batch)
            if value.dim() != 0:
                raise ValueError(f"the loss must be a scalar, got shape {[*value.shape]}")
            value.backward()
            if clip is not None:
                nn.utils.clip_grad_norm_(parameters, clip)
            optimizer.step()
            history.losses.append(value.item())
            if step * 10 // steps > bar.n * 10 // steps:  # ten updates, whatever the speed
                bar.set_postfix_str(f"loss {history.losses[-1]:.4f}", refresh=False)
                bar.update(step - bar.n)
        model.eval()
        if evaluate is not None:
            with torch.no_grad():
                history.metrics = dict(evaluate(model))
    return history


def device() -> torch.device:
    """Choose where to train, from the environment variable COURSE_DEVICE.

    Returns:
        The CPU for `cpu`, the first GPU for `cuda`, an Apple GPU for `mps` (on which the
        notebooks are untested); for `auto`, or when it is not set, the first GPU of `cuda` when
        there is one.
    Raises:
        DeviceError: the variable holds another word, or asks for a GPU where there is none.
    """
    wanted = os.environ.get("COURSE_DEVICE", "auto")
    found = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if wanted not in ("auto", "cpu", *found):
        raise DeviceError(f"COURSE_DEVICE must be auto, cpu, cuda or mps, got {wanted!r}")
    if not found.get(wanted, True):
        raise DeviceError(f"COURSE_DEVICE is {wanted}, but torch finds no such GPU; try auto")
    if wanted == "auto":
        wanted = "cuda" if found["cuda"] else "cpu"
    return torch.device(wanted)


def _move(member: object, place: torch.device) -> object:
    return member.to(place) if isinstance(member, Tensor) else member
