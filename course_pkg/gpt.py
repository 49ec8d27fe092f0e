"""GPT: a byte-level tokenizer, GPT-2's decoder-only transformer, its loss, and sampling.

Shapes: B sequences, T positions, D features, H heads, L layers, V tokens in the vocabulary.
"""

import math
from collections import Counter, defaultdict
from itertools import pairwise, zip_longest

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from course_pkg.attention import MultiHeadAttention, causal_mask
from course_pkg.data.text import words


def merge_pair(tokens: list[int], pair: tuple[int, int], new: int) -> list[int]:
    """Replace a pair of neighbours by one token, wherever it stands, from left to right.

    A token can be part of one pair only: a a a becomes X a.

    Args:
        tokens: the tokens; the list is not changed.
        pair: the two tokens to replace.
        new: what stands for them.
    Returns:
        The new list.
    """
    first, second = pair
    merged, used = [], False  # used: this token is already the second one of a pair
    for token, following in zip_longest(tokens, tokens[1:]):
        if used:
            used = False
        elif token == first and following == second:
            merged.append(new)
            used = True
        else:
            merged.append(token)
    return merged


def byte_pair_merges(counts: dict[bytes, int], merges: int) -> list[tuple[int, int]]:
    """Learn which pairs of tokens to merge: again and again the pair that occurs most often.

    At first the tokens are the bytes 0 to 255; merge number n = 0, 1, … makes token 256 + n. Pairs
    are counted within words only, overlapping ones too: a a a has the pair a a twice. Among pairs
    of equal count the smallest is taken, by its first token and then by its second.
    (Sennrich et al. 2016, §3.2; on bytes, Radford et al. 2019, §2.2)

    Args:
        counts: the words of a text, and how often each occurs.
        merges: how many merges to learn; fewer when no pair is left.
    Returns:
        The pairs, in the order in which they are merged.
    """
    spelled = {word: list(word) for word in counts}
    totals, places = Counter(), defaultdict(set)  # of each pair: how often, and in which words
    for word, tokens in spelled.items():
        for pair in pairwise(tokens):
            totals[pair] += counts[word]
            places[pair].add(word)
    learned = []
    while len(learned) < merges and totals:
        best = min(totals, key=lambda pair: (-totals[pair], pair))
        for word in places.pop(best):
            old = spelled[word]
            spelled[word] = merge_pair(old, best, 256 + len(learned))
            for tokens, sign in ((old, -1), (spelled[word], 1)):
                for pair in pairwise(tokens):
                    totals[pair] += sign * counts[word]
                    places[pair].add(word)
        totals = Counter({pair: total for pair, total in totals.items() if total > 0})
        learned.append(best)
    return learned


class BPETokenizer:
    """Turn bytes into tokens and back; every sequence of bytes has tokens.

    Tokens 0 to 255 are the bytes, 256 + n stands for pair number n, and the last tokens are special
    ones, which mark what no text contains, such as the end of a document.

    Args:
        merges: the pairs, in the order in which they were learned.
        special: the special tokens' names.

    Attributes:
        tokens: the bytes of every token, by its number; for a special token, those of its name.
        special: the number of each special token, by its name.
    """

    def __init__(self, merges: list[tuple[int, int]], special: tuple[str, ...] = ()):
        ### BEGIN SOLUTION
        self.tokens = [bytes([byte]) for byte in range(256)]
        self.new = {}  # the token of each pair; what was learned earlier has a lower number
        for first, second in merges:
            self.new[first, second] = len(self.tokens)
            self.tokens.append(self.tokens[first] + self.tokens[second])
        self.special = {name: len(self.tokens) + n for n, name in enumerate(special)}
        self.tokens += [name.encode() for name in special]
        self.cache = {}
        ### END SOLUTION

    def encode(self, text: bytes) -> list[int]:
        """Turn bytes into tokens: cut them into words, then merge pairs within each word.

        As long as a word has a pair that can be merged, the pair that was learned earliest is
        merged, wherever it stands. A special token's name in the text is text like any other.

        Args:
            text: any bytes; `data.text.words` cuts them into words.
        Returns:
            The tokens.
        """
        ### BEGIN SOLUTION
        found = []
        for word in words(text):
            if word not in self.cache:
                tokens = list(word)
                while known := [p for p in pairwise(tokens) if p in self.new]:
                    first = min(known, key=self.new.get)
                    tokens = merge_pair(tokens, first, self.new[first])
                self.cache[word] = tokens
            found += self.cache[word]
        return found
        ### END SOLUTION

    def decode(self, tokens: list[int]) -> bytes:
        """Turn tokens into bytes: bytes, because a token may end within a character.

        Args:
            tokens: the tokens; special ones become their names.
        Returns:
            The bytes.
        """
        ### BEGIN SOLUTION
        return b"".join(self.tokens[token] for token in tokens)
        ### END SOLUTION


class GPTBlock(nn.Module):
    """One layer of GPT-2: attention and a small network, each added to what comes in.

    Args:
        D: size of the vectors.
        H: how many heads; divides D.
    """

    def __init__(self, D: int, H: int):
        super().__init__()
        self.norm_1 = nn.LayerNorm(D)
        self.attention = MultiHeadAttention(D, H, bias=True)
        self.norm_2 = nn.LayerNorm(D)
        self.expand = nn.Linear(D, 4 * D)
        self.contract = nn.Linear(4 * D, D)

    def forward(
        self, X: Float[Tensor, "B T D"], mask: Tensor | None = None
    ) -> tuple[Float[Tensor, "B T D"], Float[Tensor, "B H T T"]]:
        """Apply the layer.

        X ← X + attention(norm_1(X)),   X ← X + contract(gelu(expand(norm_2(X)))),
        gelu(x) = x/2 · (1 + tanh(√(2/π) (x + 0.044715 x³)))
        (Radford et al. 2019, §2.3; Hendrycks & Gimpel 2016)

        Args:
            X: the vectors.
            mask: what may be attended to, boolean; everything when None.
        Returns:
            The new vectors, and the attention's weights.
        """
        ### BEGIN SOLUTION
        Y, A = self.attention(self.norm_1(X), mask=mask, return_weights=True)
        X = X + Y
        hidden = functional.gelu(self.expand(self.norm_2(X)), approximate="tanh")
        return X + self.contract(hidden), A
        ### END SOLUTION


class GPT(nn.Module):
    """GPT-2: predict every next token of a text from all tokens before it.

    Args:
        V: tokens in the vocabulary.
        context: how many positions it can see at most.
        D: size of the vectors.
        H: heads of each layer.
        L: layers.
    """

    def __init__(self, V: int, context: int, D: int, H: int, L: int):
        super().__init__()
        self.context = context
        self.token = nn.Embedding(V, D)
        self.position = nn.Embedding(context, D)
        self.blocks = nn.ModuleList()
        for _ in range(L):
            self.blocks.append(GPTBlock(D, H))
        self.norm = nn.LayerNorm(D)

    def forward(
        self, tokens: Int[Tensor, "B T"], return_weights: bool = False
    ) -> Float[Tensor, "B T V"] | tuple[Float[Tensor, "B T V"], Float[Tensor, "L B H T T"]]:
        """Score every token of the vocabulary as the next one, at every position.

        X = token[tokens] + position[0 … T-1], through all blocks under a causal mask,
        logits = norm(X) tokenᵀ: the embedding is used twice
        (Radford et al. 2018, §3.1; the norms' places, 2019, §2.3)

        Args:
            tokens: the texts.
            return_weights: whether to return the attention's weights of all layers as well.
        Returns:
            The logits, or (logits, A).
        Raises:
            ValueError: the texts are longer than the context.
        """
        ### BEGIN SOLUTION
        T = tokens.shape[1]
        if T > self.context:
            raise ValueError(f"{T} tokens do not fit into a context of {self.context}")
        X = self.token(tokens) + self.position.weight[:T]  # (B, T, D)
        mask = causal_mask(T).to(tokens.device)
        weights = []
        for block in self.blocks:
            X, A = block(X, mask)
            weights.append(A)
        logits = self.norm(X) @ self.token.weight.T  # (B, T, V)
        return (logits, torch.stack(weights)) if return_weights else logits
        ### END SOLUTION


def init_gpt_weights(state: dict[str, Tensor], L: int) -> dict[str, Tensor]:
    """Draw the weights that a GPT starts from.

    Matrices come from N(0, 0.02²); biases are 0, and the norms' weights 1. What is added to the
    residual stream, `attention.W_O` and `contract.weight` of every block, comes from
    N(0, 0.02² / (2L)), since 2L such terms add up
    (Radford et al. 2018, §4.1, for 0.02; 2019, §2.3, for the division)

    Args:
        state: the state dict of a `GPT`; it is not changed.
        L: how many layers it has.
    Returns:
        A new state dict, of the same names, shapes and dtypes.
    """
    drawn = {}
    for name, value in state.items():
        if value.dim() == 1:
            is_scale = "norm" in name and name.endswith("weight")
            drawn[name] = torch.ones_like(value) if is_scale else torch.zeros_like(value)
        else:
            is_residual = name.endswith(("attention.W_O", "contract.weight"))
            std = 0.02 / math.sqrt(2 * L) if is_residual else 0.02
            drawn[name] = std * torch.randn_like(value)
    return drawn


def language_model_loss(
    logits: Float[Tensor, "B T V"],
    tokens: Int[Tensor, "B T"],
    lengths: Int[Tensor, "B"] | None = None,
) -> Float[Tensor, ""]:
    """Measure how surprising each next token is, on average, in nats.

    loss = - mean over b and t = 0 … T-2 of log softmax(logits[b, t])[tokens[b, t+1]]

    Args:
        logits: the model's scores at every position.
        tokens: the texts that it has read; those of position t+1 are the targets of position t.
        lengths: how many tokens of each text are real, at least 1, and at least 2 somewhere; all
            when None. Padding after them is no target.
    Returns:
        The mean over all targets of the batch.
    """
    surprise = functional.cross_entropy(
        logits[:, :-1].transpose(1, 2), tokens[:, 1:], reduction="none"
    )  # (B, T-1)
    if lengths is None:
        return surprise.mean()
    real = torch.arange(1, tokens.shape[1], device=tokens.device) < lengths[:, None]
    return surprise[real].mean()


def perplexity(losses: Float[Tensor, "batches"], counts: Int[Tensor, "batches"]) -> float:
    """Summarise the losses of batches: among how many tokens does the model waver, on average?

    exp(Σ_n counts_n losses_n / Σ_n counts_n)

    Args:
        losses: the mean loss of each batch, in nats for each token.
        counts: how many tokens each batch predicts.
    Returns:
        The perplexity, at least 1; V for a model that only guesses.
    """
    return torch.exp((losses * counts).sum() / counts.sum()).item()


def bits_per_byte(loss: float, tokens: int, size: int) -> float:
    """Turn a loss for each token into one for each byte, which can be compared across tokenizers.

    Args:
        loss: the mean loss, in nats for each token.
        tokens: how many tokens a text has.
        size: how many bytes the same text has.
    Returns:
        The bits that the model needs for each byte; 8 is no compression at all.
    """
    return loss / math.log(2) * tokens / size


def token_probabilities(
    logits: Float[Tensor, "B V"],
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
) -> Float[Tensor, "B V"]:
    """Turn scores into the probabilities to draw the next token from.

    p = softmax(logits / temperature); temperature 0 is its limit, all on the best token (the first
    of several). Then all but the top_k most probable get 0. Then all get 0 but the smallest set
    of most probable tokens whose sum reaches top_p, the sums taken over what is left, in
    proportion. What remains is scaled to sum to one.
    (top-p: Holtzman et al. 2020, §3.1; top-k: Fan et al. 2018)

    Args:
        logits: the scores, one row for each text.
        temperature: below 1 favours probable tokens, above 1 evens out; not negative.
        top_k: how many tokens to keep, at least 1; all when None. V or more keeps all.
        top_p: the share to keep, in (0, 1]; all when None. The best token is always kept.
    Returns:
        The probabilities; every row sums to one, however small the temperature is.
    Raises:
        ValueError: temperature, top_k or top_p is out of its range.
    """
    if temperature < 0 or (top_k is not None and top_k < 1):
        raise ValueError(f"temperature is {temperature} and top_k {top_k}: one is too small")
    if top_p is not None and not 0 < top_p <= 1:
        raise ValueError(f"top_p must lie in (0, 1], got {top_p}")
    _, V = logits.shape
    if temperature == 0:
        return functional.one_hot(logits.argmax(dim=1), V).to(logits)
    below = logits - logits.amax(dim=1, keepdim=True)  # 0 for the best: its quotient is finite
    softened = below / max(temperature, torch.finfo(torch.float32).tiny)
    p, order = torch.softmax(softened, dim=1).sort(descending=True, stable=True)
    if top_k is not None:
        p[:, top_k:] = 0
    if top_p is not None:
        p = p / p.sum(dim=1, keepdim=True)
        before = functional.pad(p.cumsum(dim=1)[:, :-1], (1, 0))  # the sum of what is likelier
        p = p * (before < top_p)
    p = p / p.sum(dim=1, keepdim=True)
    return p.gather(1, order.argsort(dim=1))  # back to the vocabulary's order


class Writer(GPT):
    """A GPT that writes: it continues texts, token by token."""

    @torch.no_grad()
    def sample(
        self,
        tokens: Int[Tensor, "B T"],
        count: int,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        stop: int | None = None,
        generator: torch.Generator | None = None,
    ) -> Int[Tensor, "B T+N"]:
        """Continue each text by drawing one token after the other.

        Each token is drawn from `token_probabilities` of the logits at the last position, given at
        most the last `context` tokens.

        Args:
            tokens: the texts, at least one token each; they are not changed.
            count: how many tokens to add at most.
            temperature, top_k, top_p: as in `token_probabilities`.
            stop: a token that ends a text. After it a text gets nothing but stop, and when every
                text has drawn it, writing ends. A stop token in what was given ends nothing.
            generator: the source of randomness; torch's own when None.
        Returns:
            The texts, each with N ≤ count new tokens.
        """
        ### BEGIN SOLUTION
        ended = torch.zeros(len(tokens), dtype=torch.bool, device=tokens.device)
        for _ in range(count):
            logits = self(tokens[:, -self.context :])[:, -1]  # (B, V)
            p = token_probabilities(logits, temperature, top_k, top_p)
            drawn = torch.multinomial(p, 1, generator=generator)[:, 0]
            if stop is not None:
                drawn = torch.where(ended, stop, drawn)
                ended = ended | (drawn == stop)
            tokens = torch.cat([tokens, drawn[:, None]], dim=1)
            if ended.all():
                break
        return tokens
        ### END SOLUTION


def load_gpt2(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Turn the weights of a published GPT-2 into those of our `GPT`.

    The names are those of Hugging Face's GPT2LMHeadModel, or of GPT2Model, which lack the prefix
    "transformer.": wte, wpe, h.N.ln_1, h.N.attn.c_attn, h.N.attn.c_proj, h.N.ln_2, h.N.mlp.c_fc,
    h.N.mlp.c_proj and ln_f. The matrices are laid out for x W; c_attn is [W_Q W_K W_V]. Old files
    also hold masks, h.N.attn.bias and h.N.attn.masked_bias, which are not weights; lm_head.weight
    repeats wte.weight.

    Args:
        state: the state dict of a GPT-2.
    Returns:
        A state dict for `GPT`.
    Raises:
        ValueError: the state holds an unknown name, or an lm_head that is not wte.
    """
    state = {name.removeprefix("transformer."): value for name, value in state.items()}
    head = state.pop("lm_head.weight", None)
    if head is not None and not torch.equal(head, state["wte.weight"]):
        raise ValueError("lm_head.weight is not wte.weight, but our GPT has one matrix for both")
    outside = {"wte": "token", "wpe": "position", "ln_f": "norm"}
    inside = {"ln_1": "norm_1", "ln_2": "norm_2", "mlp.c_fc": "expand", "mlp.c_proj": "contract"}
    ours = {}
    for name, value in state.items():
        place, _, kind = name.rpartition(".")  # "h.0.mlp.c_fc" and "weight"
        prefix, renamed = "", outside
        if place.startswith("h."):
            _, number, place = place.split(".", 2)
            prefix, renamed = f"blocks.{number}.", inside
        if prefix and place == "attn" and kind in ("bias", "masked_bias"):  # masks of old files
            continue
        letter = {"weight": "W", "bias": "b"}.get(kind)
        if letter is None or name in ("wte.bias", "wpe.bias"):
            raise ValueError(f"our GPT has no place for {name}")
        if prefix and place == "attn.c_attn":
            for x, part in zip("QKV", value.chunk(3, dim=-1), strict=True):
                ours[f"{prefix}attention.{letter}_{x}"] = part
        elif prefix and place == "attn.c_proj":
            ours[f"{prefix}attention.{letter}_O"] = value
        elif place in renamed:
            is_linear = place.startswith("mlp") and kind == "weight"  # torch's are W x: turned
            ours[f"{prefix}{renamed[place]}.{kind}"] = value.T if is_linear else value
        else:
            raise ValueError(f"our GPT has no place for {name}")
    return ours


def language_model_loss_fault() -> tuple[str, tuple[Tensor, Tensor]]:
    """Say what is wrong with the black box of `language_model_loss`, and how that can be seen.

    Returns:
        The letter of its mistake, and arguments for which it does not return what
        `language_model_loss` does.
    """
    logits, tokens = torch.zeros(1, 2, 2), torch.zeros(1, 2, dtype=torch.long)
    return "B", (logits, tokens)  # one target costs log 2; the box halves it, for two tokens
