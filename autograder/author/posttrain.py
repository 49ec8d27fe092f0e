"""`python -m autograder posttrain`: train the target on its own answers, in several ways.

Every way gets as many rounds of as many samples, and two steps of Adam for each round, with
adapters of the same size. DPO has a learning rate of its own, which is lower. What assignment 24
shows is kept in course_pkg/data/weights/post_training: the curves of all runs, and two adapters.
A run that was made before is not made again; what is made on the way is in build/posttrain.
"""

import argparse
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from autograder.assignment import ROOT
from autograder.author.trial import provenance
from course_pkg.data import docstrings, text
from course_pkg.data.headings import headings
from course_pkg.data.small_llama import CONTEXT
from course_pkg.gpt import bits_per_byte, language_model_loss
from course_pkg.inference.models import ServedLlama, shipped
from course_pkg.inference.rollouts import (
    ADAPTERS,
    Rollouts,
    adapt,
    adapters,
    judged,
    sample,
    tokenizer,
    without_adapters,
)
from course_pkg.post_training import (
    dpo_loss,
    grpo_step,
    kl_estimate,
    prompt_loss,
    rejection_sample,
    sequence_log_prob,
    verify,
)
from course_pkg.tools.threads import one_thread

BUILD = ROOT / "build" / "posttrain"
BASE = BUILD / "base.json"  # what is measured without training
ROUNDS, EVERY, UPDATES, N, G, LR, DPO_LR = 12, 6, 2, 8, 8, 5e-3, 1e-3
SEEDS, TESTS = (0, 1, 2), 16
TEMPERATURES, COOLED, MANY = (1.0, 0.7, 0.5), 16, 64  # at the end; answers to each heading
KEPT = {"grpo": "grpo", "lines": "lines"}  # whose adapters of the first seed are kept


def shuffled(rewards: Tensor, dealer: torch.Generator | None) -> Tensor:
    """Deal all rewards of a batch out again, if there is a dealer: as many, to any answers."""
    if dealer is None:
        return rewards
    order = torch.randperm(rewards.numel(), generator=dealer)
    return rewards.flatten()[order].view_as(rewards)


def clone(model: ServedLlama, optimizer, prompts: list[str], rollouts: Rollouts) -> None:
    """Imitate the answers that are right: at most four for each prompt."""
    kept = [n * G + g for n, g in rejection_sample(prompts, rollouts.texts, verify, most=4)]
    if kept:
        tokens, mask = rollouts.tokens[kept], rollouts.mask[kept]
        for _ in range(UPDATES):
            step(optimizer, prompt_loss(model.llama(tokens), tokens, mask))


def prefer(model: ServedLlama, optimizer, prompts: list[str], rollouts: Rollouts) -> None:
    """Prefer right answers to wrong ones: as many pairs for each prompt as there can be."""
    chosen, rejected = [], []
    for n, row in enumerate(judged(prompts, rollouts.texts, verify).tolist()):
        right = [n * G + g for g in range(G) if row[g]]
        wrong = [n * G + g for g in range(G) if not row[g]]
        for a, b in zip(right, wrong, strict=False):
            chosen.append(a)
            rejected.append(b)
    if chosen:
        rows = chosen + rejected
        tokens, mask = rollouts.tokens[rows], rollouts.mask[rows]
        with torch.no_grad(), without_adapters(model):
            given = sequence_log_prob(model.llama(tokens), tokens, mask)[1].chunk(2)
        for _ in range(UPDATES):
            own = sequence_log_prob(model.llama(tokens), tokens, mask)[1].chunk(2)
            step(optimizer, dpo_loss(*own, *given, beta=0.1)[0])


def reinforce(
    model: ServedLlama, optimizer, prompts: list[str], rollouts: Rollouts,
    beta: float = 0.0, dealer: torch.Generator | None = None, reward: Callable = verify,
) -> None:  # fmt: skip
    """Take a step of GRPO with the groups whose rewards differ."""
    rewards = shuffled(judged(prompts, rollouts.texts, reward), dealer)
    rows = (rewards.std(dim=1) > 0).repeat_interleave(G)
    if not rows.any():
        return
    tokens, mask, reference = rollouts.tokens[rows], rollouts.mask[rows], None
    if beta:
        with torch.no_grad(), without_adapters(model):
            reference, _ = sequence_log_prob(model.llama(tokens), tokens, mask)
    grouped = rewards[rewards.std(dim=1) > 0]
    settings = {"beta": beta, "reference": reference, "updates": UPDATES}
    grpo_step(model.llama, optimizer, tokens, mask, grouped, **settings)


def step(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    """Descend once."""
    optimizer.zero_grad()
    loss.backward()
    trained = [p for group in optimizer.param_groups for p in group["params"]]
    torch.nn.utils.clip_grad_norm_(trained, 1.0)
    optimizer.step()


def documenting_lines(prompt: str, answer: str) -> float:
    """Count the lines that document something: a reward that can be had without what is asked."""
    return float(sum(line[:1].isalpha() and " : " in line for line in answer.split("\n")))


WAYS: dict[str, Callable] = {
    "grpo": reinforce,
    "grpo, shuffled": reinforce,
    "cloning": clone,
    "dpo": prefer,
    "grpo, KL": partial(reinforce, beta=0.1),
    "lines": partial(reinforce, reward=documenting_lines),
}


@torch.no_grad()
def measure(model: ServedLlama) -> tuple[list[int], Rollouts]:
    """Ask held-out headings: how many answers to each are right, and the answers."""
    prompts = headings(TESTS, seed=0, held_out=True)
    rollouts = sample(model, prompts, G, seed=0)
    return judged(prompts, rollouts.texts, verify).sum(dim=1).int().tolist(), rollouts


def cooled(model: ServedLlama) -> dict[str, list[int]]:
    """Ask the same headings at lower temperatures too, with other draws."""
    prompts, counts = headings(TESTS, seed=0, held_out=True), {}
    for T in TEMPERATURES:
        rollouts = sample(model, prompts, COOLED, seed=1, temperature=T)
        counts[str(T)] = judged(prompts, rollouts.texts, verify).sum(dim=1).int().tolist()
    return counts


def untrained() -> dict:
    """Measure the model as it is: at lower temperatures, and with many answers to each heading."""
    model, prompts = shipped("target"), headings(TESTS, seed=0, held_out=True)
    adapt(model)
    rollouts = sample(model, prompts, MANY, seed=2)
    right = judged(prompts, rollouts.texts, verify).sum(dim=1).int().tolist()
    return {"cooled": cooled(model), "of many": right}


@torch.no_grad()
def distance(model: ServedLlama, rollouts: Rollouts) -> float:
    """Estimate the KL of each token from the model without its adapters."""
    tokens, mask = rollouts.tokens, rollouts.mask
    own, _ = sequence_log_prob(model.llama(tokens), tokens, mask)
    with without_adapters(model):
        base, _ = sequence_log_prob(model.llama(tokens), tokens, mask)
    return kl_estimate(own, base, "k3")[mask].mean().item()


@torch.no_grad()
def documentation(model: ServedLlama) -> float:
    """Measure the bits per byte of documentation that nobody has trained on."""
    pages = docstrings.pages((docstrings.STANDARD,))
    unseen = "".join(page.text for page in pages if page.held_out).encode()[:16_000]
    tokens = torch.tensor(tokenizer().encode(unseen))
    parts = text.stretches(tokens, CONTEXT)
    return bits_per_byte(
        language_model_loss(model.llama(parts), parts).item(), len(tokens), len(unseen)
    )


def run(way: str, seed: int) -> tuple[dict, dict[str, Tensor]]:
    """Train once; give what was measured on the way, and the adapters."""
    torch.manual_seed(seed)
    model = shipped("target")
    optimizer = torch.optim.Adam(adapt(model), lr=DPO_LR if way == "dpo" else LR)
    extra = {"dealer": torch.Generator().manual_seed(seed)} if way == "grpo, shuffled" else {}
    steps, right, rewards, lines = [0], [measure(model)[0]], [], []
    far, bits = [0.0], [documentation(model)]
    for number in range(1, ROUNDS + 1):
        prompts = headings(N, seed=1000 * seed + number)
        rollouts = sample(model, prompts, G, seed=1000 * seed + number)
        rewards.append(judged(prompts, rollouts.texts, verify).mean().item())
        lines.append(judged(prompts, rollouts.texts, documenting_lines).mean().item())
        WAYS[way](model, optimizer, prompts, rollouts, **extra)
        if number % EVERY == 0:
            found, answers = measure(model)
            steps.append(number)
            right.append(found)
            far.append(distance(model, answers))
            bits.append(documentation(model))
            print(f"{way}, {seed}, step {number}: {sum(found) / TESTS / G:.3f}", flush=True)
    measured = {
        "rewards": rewards,
        **({"lines": lines} if way == "lines" else {}),
        "kl": far,
        "documentation": bits,
        "cooled": cooled(model),
    }
    facts = {"way": way, "seed": seed, "steps": steps, "right": right} | measured
    return facts, {name: value.detach().clone() for name, value in adapters(model).items()}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command: none."""


def main(arguments: argparse.Namespace) -> int:
    """Make all runs that are not there yet, and store those that are."""
    BUILD.mkdir(parents=True, exist_ok=True)
    made = provenance()  # before anything is stored: then the tree is no longer the commit's
    with one_thread():
        if not BASE.exists():
            BASE.write_text(json.dumps(untrained() | made))
        for way in WAYS:
            for seed in SEEDS:
                make(BUILD / f"{way}-{seed}", way, seed, made)
                store()
    return 0


def make(path: Path, way: str, seed: int, made: dict[str, str]) -> None:
    """Make one run, unless it is there, and note where it was made."""
    if path.with_suffix(".json").exists():
        return
    found, trained = run(way, seed)
    save_file({name: value.half() for name, value in trained.items()}, f"{path}.safetensors")
    path.with_suffix(".json").write_text(json.dumps(found | made))


def store() -> None:
    """Keep the curves of all runs, and some adapters."""
    ADAPTERS.mkdir(parents=True, exist_ok=True)
    paths = [BUILD / f"{way}-{seed}.json" for way in WAYS for seed in SEEDS]
    runs = [json.loads(path.read_text()) for path in paths if path.exists()]
    facts = {
        "N": N,
        "G": G,
        "lr": LR,
        "dpo_lr": DPO_LR,
        "updates": UPDATES,
        "torch": torch.__version__,
    }
    facts |= {"base": json.loads(BASE.read_text()), "runs": runs}
    (ADAPTERS / "runs.json").write_text(json.dumps(facts) + "\n")
    for way, name in KEPT.items():
        trained = BUILD / f"{way}-{SEEDS[0]}.safetensors"
        if trained.exists():
            (ADAPTERS / f"{name}.safetensors").write_bytes(trained.read_bytes())
