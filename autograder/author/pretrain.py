"""`python -m autograder pretrain NAME`: train a language model on documentation.

The text is what `docstrings.pages` reads. Training that was interrupted continues from its last
checkpoint; the batch of a step depends on the step's number alone. What is made on the way is kept
in build/pretrain. Matrices are multiplied in bfloat16 where a processor has instructions for that
(AMX), and a step takes less than half as long; elsewhere bfloat16 is slower, and fails in an LSTM.
"""

import argparse
import json
import math
import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from jaxtyping import Float, Int
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from autograder.assignment import ROOT, CourseError
from autograder.author.trial import provenance
from course_pkg.data import docstrings, text
from course_pkg.data.pretrained import FOLDER
from course_pkg.data.small_llama import CONTEXT
from course_pkg.gpt import (
    GPT,
    BPETokenizer,
    bits_per_byte,
    byte_pair_merges,
    init_gpt_weights,
    language_model_loss,
)
from course_pkg.llama import Llama
from course_pkg.tools import train

BUILD = ROOT / "build" / "pretrain"
VOCABULARY = 2048
WARM_UP = 200
CHECKPOINT = 100  # steps between two of them
SEED = 0  # of the weights


@dataclass(frozen=True)
class Recipe:
    """How a model is made and trained.

    Attributes:
        D, H, G, L: of a `Llama`; without G it is a `GPT`, without H an LSTM of L layers.
        steps: of B stretches of CONTEXT tokens each.
        lr: the highest learning rate: it rises for WARM_UP steps and falls along a cosine to a
            tenth.
    """

    D: int
    L: int
    H: int | None = None
    G: int | None = None
    steps: int = 6_000
    B: int = 16
    lr: float = 2e-3


RECIPES = {
    "target": Recipe(D=224, L=6, H=8, G=4),
    "draft": Recipe(D=96, L=2, H=4, G=2, steps=8_000, lr=4e-3),
    "gpt": Recipe(D=128, L=6, H=4, steps=3_500, lr=3e-3),
    "lstm": Recipe(D=432, L=2, lr=4e-3),
    "size-1": Recipe(D=32, L=2, H=4, G=2, steps=3000, lr=4e-3),
    "size-2": Recipe(D=64, L=2, H=4, G=2, steps=3000, lr=4e-3),
    "size-3": Recipe(D=96, L=3, H=4, G=2, steps=3000, lr=4e-3),
    "size-4": Recipe(D=128, L=4, H=8, G=4, steps=3000, lr=3e-3),
    "size-5": Recipe(D=192, L=5, H=8, G=4, steps=3000, lr=2e-3),
}


class Recurrent(nn.Module):
    """An LSTM that reads and scores tokens as a `Llama` does, for comparison.

    Without a norm before its gates it needs what a Llama does not: inputs of size 1, though the
    embedding that also scores tokens is small, and forget gates that are open at the start
    (Jozefowicz et al. 2015). Otherwise it learns nothing for hundreds of steps.
    """

    def __init__(self, V: int, D: int, L: int):
        super().__init__()
        self.token = nn.Embedding(V, D)
        nn.init.normal_(self.token.weight, std=0.02)
        self.lstm = nn.LSTM(D, D, num_layers=L, batch_first=True)
        with torch.no_grad():
            for layer in range(L):
                getattr(self.lstm, f"bias_ih_l{layer}")[D : 2 * D] = 1.0

    def forward(self, tokens: Int[Tensor, "B T"]) -> Float[Tensor, "B T V"]:
        """Score the next token after each of the tokens."""
        X = self.token(tokens) * math.sqrt(self.token.embedding_dim)
        return self.lstm(X)[0] @ self.token.weight.T


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    parser.add_argument("name", choices=RECIPES)
    parser.add_argument("--minutes", type=float, help="stop after so long; the next run goes on")


def main(arguments: argparse.Namespace) -> int:
    """Train one model, and store it when it is done."""
    BUILD.mkdir(parents=True, exist_ok=True)
    corpus = tokens(BUILD)
    recipe, path = RECIPES[arguments.name], BUILD / f"{arguments.name}.pt"
    seconds = math.inf if arguments.minutes is None else 60 * arguments.minutes
    model, losses = run(recipe, corpus["train"], path, seconds, train.device())
    print(f"{len(losses)} of {recipe.steps} steps")
    if len(losses) == recipe.steps:
        store(arguments.name, model, losses, corpus)
    return 0


def tokens(folder: Path) -> dict[str, Tensor]:
    """Give the merges of the tokenizer, and the text as tokens; made once, then read.

    Returns:
        "merges", pairs of tokens; "train" and "test", tokens; "bytes", the size of the test text.
    """
    path = folder / "tokens.safetensors"
    if not path.exists():
        parts = ["", ""]
        for page in docstrings.pages():
            parts[page.held_out] += page.text
        training, held_out = (part.encode() for part in parts)
        merges = byte_pair_merges(Counter(text.words(training)), VOCABULARY - 256)
        tokenizer = BPETokenizer(merges)
        save_file(
            {
                "merges": torch.tensor(merges, dtype=torch.int16),
                "train": torch.tensor(tokenizer.encode(training), dtype=torch.int16),
                "test": torch.tensor(tokenizer.encode(held_out), dtype=torch.int16),
                "bytes": torch.tensor([len(held_out)]),
            },
            path,
        )
    return load_file(path)


def build(recipe: Recipe) -> nn.Module:
    """Make the model of a recipe, with fresh weights."""
    if recipe.H is None:
        return Recurrent(VOCABULARY, recipe.D, recipe.L)
    if recipe.G is None:
        model = GPT(VOCABULARY, CONTEXT, recipe.D, recipe.H, recipe.L)
        model.load_state_dict(init_gpt_weights(model.state_dict(), recipe.L))
        return model
    return Llama(VOCABULARY, recipe.D, recipe.H, recipe.G, recipe.L, tied=True)


def rate(recipe: Recipe, step: int) -> float:
    """Give the learning rate of a step, from 0."""
    if step < WARM_UP:
        return recipe.lr * (step + 1) / WARM_UP
    share = (step - WARM_UP) / max(recipe.steps - WARM_UP, 1)
    return recipe.lr * (0.55 + 0.45 * math.cos(math.pi * share))


def run(
    recipe: Recipe,
    corpus: Tensor,
    path: Path,
    seconds: float = math.inf,
    device: torch.device | str = "cpu",
) -> tuple[nn.Module, list[float]]:
    """Train from the last checkpoint, or from the start, until the steps or the time are used up.

    Args:
        recipe: what to train.
        corpus: the text, as tokens.
        path: where the checkpoint is.
        seconds: how long at most.
        device: where to train.
    Returns:
        The model, and the losses of all steps so far.
    Raises:
        CourseError: the checkpoint is of another recipe.
    """
    torch.manual_seed(SEED)
    model, losses = build(recipe).to(device), []
    optimizer = torch.optim.AdamW(model.parameters(), lr=recipe.lr, betas=(0.9, 0.95))
    if path.exists():
        kept = torch.load(path, map_location=device, weights_only=True)
        if kept["recipe"] != asdict(recipe):
            raise CourseError(f"{path} is of another recipe: {kept['recipe']}; remove it")
        model.load_state_dict(kept["model"])
        optimizer.load_state_dict(kept["optimizer"])
        losses = kept["losses"]
    start = time.monotonic()
    while len(losses) < recipe.steps and time.monotonic() - start < seconds:
        step = len(losses)
        batch = text.batch(corpus, recipe.B, CONTEXT, step).long().to(device)
        optimizer.param_groups[0]["lr"] = rate(recipe, step)
        with torch.autocast(batch.device.type, torch.bfloat16, enabled=_has_bfloat16(batch.device)):
            logits = model(batch)
        loss = language_model_loss(logits.float(), batch)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
        if len(losses) % CHECKPOINT == 0 or len(losses) == recipe.steps:
            keep(path, recipe, model, optimizer, losses)
            took = time.monotonic() - start
            print(f"step {len(losses)}, {took:.0f} s, loss {losses[-1]:.3f}", flush=True)
    return model, losses


def _has_bfloat16(device: torch.device) -> bool:
    """Say whether a device has instructions for products of matrices in bfloat16."""
    return device.type != "cpu" or torch.cpu.get_capabilities().get("amx_bf16", False)


def keep(path: Path, recipe: Recipe, model: nn.Module, optimizer, losses: list[float]) -> None:
    """Write a checkpoint; a run that is stopped meanwhile leaves the last one whole."""
    parts = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "losses": losses}
    torch.save(parts | {"recipe": asdict(recipe)}, path.with_suffix(".new"))
    path.with_suffix(".new").replace(path)


@torch.no_grad()
def test_loss(model: nn.Module, corpus: Tensor) -> float:
    """Measure the loss for each token on text that was held out."""
    device = next(model.parameters()).device
    total, count = 0.0, 0
    for part in text.stretches(corpus, CONTEXT).split(32):
        batch = part.long().to(device)
        total += language_model_loss(model(batch), batch).item() * len(part)
        count += len(part)
    return total / count


def averaged(losses: list[float], every: int) -> list[float]:
    """Average the losses of so many steps at a time; fewer at the end are left out."""
    whole = len(losses) // every * every
    return torch.tensor(losses[:whole]).view(-1, every).mean(dim=1).tolist()


def store(name: str, model: nn.Module, losses: list[float], corpus: dict[str, Tensor]) -> None:
    """Write the weights, in half precision, and what is to be told about them."""
    model = model.eval()
    loss = test_loss(model, corpus["test"])
    bits = bits_per_byte(loss, len(corpus["test"]), int(corpus["bytes"]))
    shares = range(max(len(losses) // 200, 1), len(losses) + 1)
    every = next(count for count in shares if len(losses) % count == 0)
    facts = {
        "recipe": asdict(RECIPES[name]),
        "parameters": sum(p.numel() for p in model.parameters()),
        "tokens": len(losses) * RECIPES[name].B * CONTEXT,
        "bits_per_byte": round(bits, 4),
        "every": every,
        "losses": [round(value, 4) for value in averaged(losses, every)],
        "torch": torch.__version__,
        "seed": SEED,
        **provenance(),
    }
    FOLDER.mkdir(parents=True, exist_ok=True)
    write_json(FOLDER / f"{name}.json", facts)
    if name in PUBLISHED:
        place, publish, describe = PUBLISHED[name]
        state = {key: value.half().contiguous() for key, value in publish(model.cpu()).items()}
        (FOLDER / place).mkdir(parents=True, exist_ok=True)
        save_file(state, FOLDER / place / "model.safetensors", metadata={"format": "pt"})
        write_json(FOLDER / place / "config.json", describe(RECIPES[name], model))
        write_json(FOLDER / "merges.json", corpus["merges"].tolist())
    print(f"{name}: {facts['parameters']:,} parameters, {bits:.3f} bits per byte")


def publish_llama(model: Llama) -> dict[str, Tensor]:
    """Name and lay out the weights of a Llama as Hugging Face does: `load_llama` reads them."""
    theirs = {"token.weight": "model.embed_tokens.weight", "norm.weight": "model.norm.weight"}
    inner = {
        "norm_1.weight": "input_layernorm.weight",
        "norm_2.weight": "post_attention_layernorm.weight",
        **{f"attention.W_{x}": f"self_attn.{x.lower()}_proj.weight" for x in "QKVO"},
        **{f"feed_forward.W_{x}": f"mlp.{x}_proj.weight" for x in ("gate", "up", "down")},
    }
    state = {}
    for name, value in model.state_dict().items():
        if name in theirs:
            state[theirs[name]] = value
        else:
            _, layer, part = name.split(".", 2)
            matrix = value.T if value.dim() == 2 else value
            state[f"model.layers.{layer}.{inner[part]}"] = matrix
    return state


def describe_llama(recipe: Recipe, model: Llama) -> dict[str, object]:
    """Describe a model as transformers' LlamaConfig does."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": VOCABULARY,
        "hidden_size": recipe.D,
        "intermediate_size": model.blocks[0].feed_forward.F,
        "num_hidden_layers": recipe.L,
        "num_attention_heads": recipe.H,
        "num_key_value_heads": recipe.G,
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": model.norm.eps,
        "rope_theta": model.blocks[0].attention.base,
        "tie_word_embeddings": True,
        "dtype": "float16",
    }


def publish_gpt(model: GPT) -> dict[str, Tensor]:
    """Name and lay out the weights of a GPT as Hugging Face does: `load_gpt2` reads them."""
    theirs = {"token": "wte", "position": "wpe", "norm": "ln_f"}
    inner = {"norm_1": "ln_1", "norm_2": "ln_2", "expand": "mlp.c_fc", "contract": "mlp.c_proj"}
    state, ours = {}, model.state_dict()
    for name, value in ours.items():
        place, _, kind = name.rpartition(".")
        if place in theirs:
            state[f"{theirs[place]}.{kind}"] = value
            continue
        _, layer, place = place.split(".", 2)
        if place in inner:
            is_linear = place in ("expand", "contract") and kind == "weight"  # torch's are W x
            state[f"h.{layer}.{inner[place]}.{kind}"] = value.T if is_linear else value
    for layer in range(len(model.blocks)):
        for letter, kind in (("W", "weight"), ("b", "bias")):
            *qkv, last = (ours[f"blocks.{layer}.attention.{letter}_{x}"] for x in "QKVO")
            state[f"h.{layer}.attn.c_attn.{kind}"] = torch.cat(qkv, dim=-1)
            state[f"h.{layer}.attn.c_proj.{kind}"] = last
    return state


def describe_gpt(recipe: Recipe, model: GPT) -> dict[str, object]:
    """Describe a model as transformers' GPT2Config does."""
    return {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "vocab_size": VOCABULARY,
        "n_positions": model.context,
        "n_embd": recipe.D,
        "n_head": recipe.H,
        "n_layer": recipe.L,
        "activation_function": "gelu_new",
        "layer_norm_epsilon": model.norm.eps,
        "tie_word_embeddings": True,
        "dtype": "float16",
    }


PUBLISHED = {  # where weights are kept, and in whose names
    "target": ("llama/target", publish_llama, describe_llama),
    "draft": ("llama/draft", publish_llama, describe_llama),
    "gpt": ("gpt", publish_gpt, describe_gpt),
}


def write_json(path: Path, content: object) -> None:
    """Write a file of JSON."""
    path.write_text(json.dumps(content) + "\n")
