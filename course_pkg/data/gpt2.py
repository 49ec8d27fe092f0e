"""GPT-2's published weights and merges: from Hugging Face's cache, or fetched piece by piece."""

import contextlib
import http.client
import os
import threading
import time
import urllib.request
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

MEGABYTES = 549
_FILES = ("model.safetensors", "merges.txt")
_SITE = "https://huggingface.co/openai-community/gpt2/resolve/main/"


def find() -> Path | None:
    """Find the folder with GPT-2's files, in Hugging Face's cache or where `fetch` puts them.

    Returns:
        The folder, or None when the files are not on this machine.
    """
    home = Path(os.environ.get("HF_HOME", "~/.cache/huggingface")).expanduser()
    hub = Path(os.environ.get("HF_HUB_CACHE", home / "hub"))
    folders = [*hub.glob("models--gpt2/snapshots/*"), *hub.glob("models--openai*gpt2/snapshots/*")]
    for folder in [*sorted(folders), _folder()]:
        if all((folder / name).exists() for name in _FILES):
            return folder
    return None


def reachable(seconds: float = 2) -> bool:
    """Tell whether huggingface.co answers.

    Args:
        seconds: how long to wait, whatever holds the answer up.
    Returns:
        Whether it answers in time; False at once when HF_HUB_OFFLINE is set.
    """
    if os.environ.get("HF_HUB_OFFLINE", "0") not in ("", "0"):
        return False
    answers = []

    def ask() -> None:
        with contextlib.suppress(OSError, http.client.HTTPException):
            with urllib.request.urlopen(_SITE + _FILES[-1], timeout=seconds) as answer:
                answers.append(answer.status)

    thread = threading.Thread(target=ask, daemon=True)  # a name look-up has no time limit
    thread.start()
    thread.join(seconds)
    return bool(answers)


def fetch(seconds: float = 10) -> float:
    """Fetch GPT-2's files from huggingface.co for some time, from where the last call stopped.

    Args:
        seconds: after how long to stop.
    Returns:
        The share of the weights' bytes that has arrived; 1 when `find` finds everything.
    Raises:
        OSError: the site cannot be reached, or the disk is full.
    """
    end = time.monotonic() + seconds
    _folder().mkdir(parents=True, exist_ok=True)
    shares = [_fetch(name, end) for name in reversed(_FILES)]
    return shares[-1]


def read(folder: Path) -> tuple[dict[str, Tensor], list[tuple[int, int]]]:
    """Read weights and merges.

    GPT-2 numbers bytes in an order of its own. Here byte b is token b: the embedding's first 256
    rows are put into that order, so that the merges fit `BPETokenizer`.

    Args:
        folder: where the files are.
    Returns:
        The state dict, under Hugging Face's names, and the pairs of tokens to merge.
    """
    state = load_file(folder / "model.safetensors")
    letters = _letters()
    places = {byte: place for place, byte in enumerate(letters.values())}
    rows = torch.tensor([places[byte] for byte in range(256)])
    for name in ("wte.weight", "transformer.wte.weight", "lm_head.weight"):
        if name in state:
            state[name] = torch.cat([state[name][rows], state[name][256:]])
    numbers, merges = {letter: byte for letter, byte in letters.items()}, []
    lines = (folder / "merges.txt").read_text(encoding="utf-8").splitlines()
    for line in lines:
        if line and not line.startswith("#version"):
            first, second = line.split(" ")
            merges.append((numbers[first], numbers[second]))
            numbers[first + second] = 255 + len(merges)
    return state, merges


def _folder() -> Path:
    return Path(torch.hub.get_dir()) / "gpt2"


def _fetch(name: str, end: float) -> float:
    path = _folder() / name
    if path.exists():
        return 1.0
    part = path.with_suffix(".part")
    done = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(_SITE + name, headers={"Range": f"bytes={done}-"})
    with urllib.request.urlopen(request, timeout=10) as answer:
        if answer.status != http.client.PARTIAL_CONTENT:  # the site sends it from the start again
            done = 0
        size = done + int(answer.headers["Content-Length"])
        with part.open("ab" if done else "wb") as file:
            while done < size:
                chunk = answer.read(1 << 20)
                if not chunk:
                    raise ConnectionError(f"{_SITE}{name} ends after {done} of {size} bytes")
                file.write(chunk)
                done += len(chunk)
                if done < size and time.monotonic() > end:
                    return done / size
    part.replace(path)
    return 1.0


def _letters() -> dict[str, int]:
    """The letter by which merges.txt writes each byte, in the order in which GPT-2 numbers them."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    letters = {chr(byte): byte for byte in printable}
    return letters | {chr(256 + place): byte for place, byte in enumerate(others)}
