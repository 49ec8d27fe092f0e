"""Checks of kv_cache. Oracles: torch.nn.MultiheadAttention, scaled_dot_product_attention with
enable_gqa, stacks of torch's own layers, sums written out, and tensors that are counted."""

import contextlib
import functools
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from course_pkg.checking.batched import made, together
from course_pkg.checking.black_box import demand_exposed
from course_pkg.checking.case import Case
from course_pkg.checking.memo import once
from course_pkg.checking.programs.programs import Nonsense, Program, draw_calls, follow, played
from course_pkg.checking.registry import check
from course_pkg.checking.telling.failure import Failure, describe
from course_pkg.checks.gpt import continued, forbidden, gpt_pair
from course_pkg.checks.positions import rotated
from course_pkg.gpt import token_probabilities
from course_pkg.kv_cache import (
    CachedAttention,
    CachedGPT,
    CachedWriter,
    GroupedQueryAttention,
    KVCache,
    LatentAttention,
    attention_operations,
    kv_cache_bytes,
    mha_to_gqa,
    mha_to_gqa_fault,
)


@contextlib.contextmanager
def asking(question: str) -> Iterator[None]:
    """Add a line to what is told of a ValueError, which any code of the student's may raise."""
    try:
        yield
    except Failure as failure:
        if "ValueError" in failure.kinds:
            failure.message += f"\n{question}"
        raise


def pair(case: Case, B: int, G: int, T: int, D_h: int) -> tuple[Tensor, Tensor]:
    """Draw keys and values."""
    return case.randn(B, G, T, D_h), case.randn(B, G, T, D_h)


def demand_kept(case: Case, cache, expected: list[tuple], when: str) -> None:
    """Demand that a cache holds these pieces, one after the other."""
    K, V = case.unpack(cache.read(), "K", "V")
    case.equal(K, torch.cat([piece[0] for piece in expected], dim=2), f"K {when}")
    case.equal(V, torch.cat([piece[1] for piece in expected], dim=2), f"V {when}")


def demand_length(case: Case, cache, expected: int, when: str) -> None:
    """Demand a cache's length."""
    case.equal(cache.length, torch.tensor(expected), f"length {when}")


@check(KVCache, weight=2, see="A cache for one layer", single="B")
def appends(cache, case):
    """gives back what was appended, in the order in which it came"""
    B, G, T, D_h = case.sizes(4)
    ours, pieces = cache(B, G, 9 * T, D_h, torch.float64), []
    for length in (T, 1, T + 2, 1):
        pieces.append(pair(case, B, G, length, D_h))
        given = [part.clone() for part in pieces[-1]]
        ours.append(*given)
        demand_kept(case, ours, pieces, f"after append number {len(pieces)}")
        for part in given:
            part.fill_(9)
        is_copy = all(bool((part != 9).all()) for part in case.unpack(ours.read(), "K", "V"))
        text = "append should copy K and V; yours keeps the caller's own tensors: what the caller "
        case.that(is_copy, f"{text}writes into them later is read from the cache.")
        demand_length(
            case, ours, sum(K.shape[2] for K, _ in pieces), f"after append number {len(pieces)}"
        )


@check(KVCache, weight=2, see="Truncating the cache")
def truncates(cache, case):
    """forgets the last positions, and goes on where it was cut"""
    B, G, T, D_h = case.sizes(4, low=3)
    ours = cache(B, G, 4 * T, D_h, torch.float64)
    first, second = pair(case, B, G, T, D_h), pair(case, B, G, 2 * T, D_h)
    ours.append(*first)
    ours.append(*second)
    ours.truncate(T + 1)
    kept = second[0][:, :, :1], second[1][:, :, :1]
    demand_kept(case, ours, [first, kept], "after truncate")
    demand_length(case, ours, T + 1, "after truncate")
    third = pair(case, B, G, T, D_h)
    ours.append(*third)
    demand_kept(case, ours, [first, kept, third], "after truncate and append")


OFFSETS = torch.arange(12, dtype=torch.float64).reshape(2, 3, 1, 2) / 16


class PlainPieces:
    """What KVCache does, with a tensor for each position."""

    def __init__(self, B: int, G: int, capacity: int, D_h: int, dtype: torch.dtype):
        self.empty, self.capacity = torch.zeros(B, G, 0, D_h, dtype=dtype), capacity
        self.pieces: list[tuple] = []

    @property
    def length(self) -> int:
        return len(self.pieces)

    def append(self, K: Tensor, V: Tensor) -> None:
        if self.length + K.shape[2] > self.capacity:
            raise ValueError("full")
        self.pieces += [*zip(K.clone().split(1, dim=2), V.clone().split(1, dim=2), strict=True)]

    def read(self) -> tuple[Tensor, Tensor]:
        if not self.pieces:
            return self.empty, self.empty
        K, V = (torch.cat(parts, dim=2) for parts in zip(*self.pieces, strict=True))
        return K, V

    def truncate(self, length: int) -> None:
        if not 0 <= length <= self.length:
            raise ValueError("so many are not kept")
        self.pieces = self.pieces[:length]


class Keeping:
    """With room for {0} positions"""

    def __init__(self, caches, capacity: int):
        self.cache, self.written = caches(2, 3, capacity, 2, torch.float64), 0

    def append(self, values: list[int]) -> None:
        """append {0}"""
        if not values:
            raise Nonsense
        K = torch.tensor(values)[:, None] + OFFSETS
        self.cache.append(K, -K)
        self.written = max(self.written, self.cache.length)

    def truncate(self, length: int) -> None:
        """truncate to {0}"""
        self.cache.truncate(length)

    def look(self) -> dict[str, object]:
        K, V = Case.unpack(self.cache.read(), "K", "V")
        seen = {"the length": self.cache.length, "K": first_numbers(K, self.written)}
        return {**seen, "V, with the sign changed,": first_numbers(-V, self.written)}


def first_numbers(K: object, written: int) -> object:
    """Give what was appended at each position, and "?" where its numbers do not fit together.

    What is read behind all that was ever written is whatever the memory held: "?", too.
    """
    if not isinstance(K, Tensor) or K.dim() != 4 or (*K.shape[:2], K.shape[3]) != (2, 3, 2):
        return describe(K)
    first = K[0, 0, :, 0]
    is_plain = (K - first[:, None] == OFFSETS).all(3).all(1).all(0)
    is_known = [plain and place < written for place, plain in enumerate(is_plain.tolist())]
    return [int(n) if known else "?" for n, known in zip(first.tolist(), is_known, strict=True)]


@together
def play(caches, programs: list[Program]) -> list:
    """Play programs beside a student's class."""
    return [played(Keeping(caches, *settings), calls) for settings, calls in programs]


def compare_programs(case: Case, caches, capacities: list[int], count: int) -> None:
    """Compare random programs of `count` calls with a plain model."""
    programs = []
    for capacity in capacities:
        driver = Keeping(PlainPieces, capacity)

        def draw(driver=driver) -> tuple:
            if float(case.rand(1)) < 0.35:
                return ("truncate", int(case.integers(-1, driver.cache.length + 2, 1)))
            return ("append", case.integers(10, 100, int(case.integers(1, 5, 1))).tolist())

        programs.append(((capacity,), draw_calls(draw, driver, count)))
    follow(caches, PlainPieces, play, Keeping, programs)


@check(KVCache, weight=2, see="Truncating the cache")
def programs(cache, case):
    """reads what was appended and not truncated, in eight random programs"""
    compare_programs(case, cache, [4 + n for n in range(8)], 7)


@check(KVCache, see="A cache for one layer")
def fills(cache, case):
    """has room for as many positions as requested, and raises ValueError beyond that"""
    B, G, T, D_h = case.sizes(4)
    ours, first = cache(B, G, T, D_h, torch.float64), pair(case, B, G, T, D_h)
    ours.append(*first)
    demand_kept(case, ours, [first], "of a full cache")
    more = pair(case, B, G, 1, D_h)
    case.raises(ValueError, lambda: ours.append(*more), "a full cache gets one more")


@check(KVCache, see="A cache for one layer")
def nothing_yet(cache, case):
    """is empty at first, and stays as it is when no position comes, also when it is full"""
    B, G, T, D_h = case.sizes(4)
    ours, first = cache(B, G, T, D_h, torch.float64), pair(case, B, G, T, D_h)
    nothing = pair(case, B, G, 0, D_h)
    demand_length(case, ours, 0, "of a new cache")
    demand_kept(case, ours, [nothing], "of a new cache")
    ours.append(*nothing)
    demand_length(case, ours, 0, "after nothing came")
    demand_kept(case, ours, [nothing], "after nothing came")
    ours.append(*first)
    ours.append(*nothing)
    demand_length(case, ours, T, "after nothing came into a full cache")
    demand_kept(case, ours, [first], "after nothing came into a full cache")


@check(KVCache, see="A cache for one layer")
def nothing_changes(cache, case):
    """stays as it was when what is appended does not fit"""
    B, G, T, D_h = case.sizes(4, low=3)
    ours, first = cache(B, G, T + 2, D_h, torch.float64), pair(case, B, G, T, D_h)
    ours.append(*first)
    too_many = pair(case, B, G, 3, D_h)
    case.raises(
        ValueError, lambda: ours.append(*too_many), "3 positions come and there is room for 2"
    )
    K, _ = case.unpack(ours.read(), "K", "V")
    case.equal(K[:, :, :T], first[0], "K that was there before an append that did not fit")
    demand_length(case, ours, T, "after an append that did not fit")
    demand_kept(case, ours, [first], "after an append that did not fit")
    last = pair(case, B, G, 2, D_h)
    ours.append(*last)
    demand_kept(case, ours, [first, last], "of the room that is left")


@check(KVCache, see="A cache for one layer")
def shapes(cache, case):
    """raises ValueError for keys or values of another shape, which torch may copy to all"""
    B, G, T, D_h = case.sizes(4, low=3)
    ours, first = cache(B, G, 4 * T, D_h, torch.float64), pair(case, B, G, 2, D_h)
    ours.append(*first)
    K, V = pair(case, B, G, T, D_h)
    wrong = {
        "one text comes instead of all": (K[:1], V[:1]),
        "there are keys of one text": (K[:1], V),
        "there are values of one text": (K, V[:1]),
        "there are keys of one head": (K[:, :1], V),
        "there are values of one head": (K, V[:, :1]),
        "there are values of one position": (K, V[:, :, :1]),
        "there are keys of one position": (K[:, :, :1], V),
        "the heads of keys have another size": (K[..., :1], V),
        "the heads of values have another size": (K, V[..., :1]),
        "one head comes instead of all": (K[:, :1], V[:, :1]),
        "the heads have another size": (K[..., :1], V[..., :1]),
        "there are fewer values than keys": (K, V[:, :, 1:]),
        "there are more values than keys": (K[:, :, 1:], V),
        "positions come before heads": (K.transpose(1, 2), V.transpose(1, 2)),
        "a single head comes, of a single text": (K[0, 0], V[0, 0]),
        "the first axis is missing": (K[0], V[0]),
    }
    for when, (keys, values) in wrong.items():
        case.raises(ValueError, lambda k=keys, v=values: ours.append(k, v), when)
        demand_length(case, ours, 2, f"when {when}")
    demand_kept(case, ours, [first], "after what was refused")


@check(KVCache, see="A cache for one layer")
def two_caches(cache, case):
    """shares nothing with another cache"""
    B, G, T, D_h = case.sizes(4)
    first, second = (pair(case, B, G, T, D_h) for _ in range(2))
    one, other = (cache(B, G, T, D_h, torch.float64) for _ in range(2))
    one.append(*first)
    other.append(*second)
    demand_kept(case, one, [first], "of the first of two caches")


@check(KVCache, see="Truncating the cache")
def never_longer(cache, case):
    """raises ValueError for a length that would bring back what was forgotten"""
    B, G, T, D_h = case.sizes(4, low=3)
    ours = cache(B, G, 2 * T, D_h, torch.float64)
    ours.append(*pair(case, B, G, T + 1, D_h))
    ours.truncate(T - 1)
    case.raises(ValueError, lambda: ours.truncate(T), "more is to be kept than there is")


@check(KVCache, see="Truncating the cache")
def limits(cache, case):
    """keeps everything or nothing when told to, and raises ValueError for other lengths"""
    B, G, T, D_h = case.sizes(4, low=3)
    ours, first = cache(B, G, 3 * T, D_h, torch.float64), pair(case, B, G, T, D_h)
    ours.append(*first)
    ours.truncate(T)
    demand_kept(case, ours, [first], "after nothing was cut")
    case.raises(ValueError, lambda: ours.truncate(T + 1), "more is to be kept than there is")
    case.raises(ValueError, lambda: ours.truncate(-1), "a negative number is to be kept")
    demand_length(case, ours, T, "after refused lengths")
    ours.truncate(0)
    demand_length(case, ours, 0, "after everything was cut")
    again = pair(case, B, G, 2 * T, D_h)
    ours.append(*again)
    demand_kept(case, ours, [again], "of a second text")


@check(KVCache, see="What a cache must not keep")
def no_gradient(cache, case):
    """keeps keys and values without their gradient history"""
    B, G, T, D_h = case.sizes(4)
    ours = cache(B, G, 2 * T, D_h, torch.float64)
    K, V = pair(case, B, G, T, D_h)
    ours.append(K.requires_grad_(), V.requires_grad_())
    for name, part in zip("KV", case.unpack(ours.read(), "K", "V"), strict=True):
        case.shape(part, (B, G, T, D_h), name)
        case.that(
            not part.requires_grad,
            f"{name} should carry no gradient when it is read, yours does: every step of a text "
            "would be kept in memory.",
        )


@check(KVCache, see="What a cache must not keep")
def half(cache, case):
    """keeps the numbers in the dtype that was asked for"""
    B, G, T, D_h = case.sizes(4)
    ours, (K, V) = cache(B, G, 2 * T, D_h, torch.float16), pair(case, B, G, T, D_h)
    ours.append(K, V)
    parts = case.unpack(ours.read(), "K", "V")
    for name, part, given in zip("KV", parts, (K, V), strict=True):
        case.shape(part, (B, G, T, D_h), name)
        case.equal(part, given.half().double(), f"{name} in half precision", rtol=0, atol=1e-7)
        case.that(
            part.dtype == torch.float16,
            f"{name} should be torch.float16, yours is {part.dtype}.",
        )


@check(KVCache, see="What a cache must not keep")
def by_default(cache, case):
    """keeps numbers in float32 when no dtype is given"""
    B, G, T, D_h = case.sizes(4)
    ours, (K, V) = cache(B, G, T, D_h), pair(case, B, G, T, D_h)
    ours.append(K, V)
    for name, part in zip("KV", case.unpack(ours.read(), "K", "V"), strict=True):
        case.shape(part, (B, G, T, D_h), name)
        case.that(
            part.dtype == torch.float32, f"{name} should be torch.float32, yours is {part.dtype}."
        )


def attention_state(case: Case, D: int, size: int | None = None) -> dict[str, Tensor]:
    """Draw the weights and biases of a layer whose keys and values have `size` features."""
    size = D if size is None else size
    sizes = {"Q": D, "K": size, "V": size, "O": D}
    state = {f"W_{x}": case.randn(D, n) * 2 / D**0.5 for x, n in sizes.items()}
    return state | {f"b_{x}": case.randn(n) / 2 for x, n in sizes.items()}


def torchs_attention(state: dict[str, Tensor], H: int) -> nn.MultiheadAttention:
    """Give torch's layer the weights of ours."""
    layer = nn.MultiheadAttention(len(state["W_Q"]), H, batch_first=True).double()
    theirs = {
        "in_proj_weight": torch.cat([state[f"W_{x}"].T for x in "QKV"]),
        "in_proj_bias": torch.cat([state[f"b_{x}"] for x in "QKV"]),
        "out_proj.weight": state["W_O"].T,
        "out_proj.bias": state["b_O"],
    }
    layer.load_state_dict(theirs)
    return layer


def full_attention(state: dict[str, Tensor], H: int, X: Tensor) -> Tensor:
    """Let torch attend over a whole text, each position to itself and what comes before."""
    causal = {"attn_mask": forbidden(X.shape[1]), "need_weights": False}
    return torchs_attention(state, H)(X, X, X, **causal)[0]


def attention_pair(case: Case, attention) -> tuple:
    """Make a student's layer with drawn weights; return it, its state, and B, T, D and H."""
    B, T, H, D_h = case.sizes(4, low=3)
    D = H * D_h
    state = attention_state(case, D)
    ours = made(attention, state, D, H, bias=True)
    return ours, state, B, T + 2, D, H


@together
def in_pieces(ours, X: Tensor, cache, lengths: list[int]) -> list:
    """Let a layer read vectors piece by piece."""
    return [ours(piece, cache) for piece in X.split(lengths, dim=1)]


def demand_pieces(case: Case, given: list, expected: Tensor, lengths: list[int], what: str) -> None:
    """Demand what a layer or a model says about each piece."""
    start = 0
    for piece, length in zip(given, lengths, strict=True):
        where = f"{what} of position {start}" if length == 1 else f"{what} from position {start} on"
        case.equal(piece, expected[:, start : start + length], where)
        start += length


@check(CachedAttention, see="Attention with a cache")
def whole_text(attention, case):
    """agrees with torch.nn.MultiheadAttention on a whole text, without a cache"""
    ours, state, B, T, D, H = attention_pair(case, attention)
    X = case.randn(B, T, D)
    case.equal(ours(X), full_attention(state, H, X), "Y")


@check(CachedAttention, weight=3, see="Attention with a cache")
def prefill_and_decode(attention, case):
    """agrees with torch when a text is read first, then continued position by position"""
    ours, state, B, T, D, H = attention_pair(case, attention)
    X, cache = case.randn(B, T, D), ours.new_cache(B, T)
    lengths = [T - 3, 1, 1, 1]
    given = in_pieces(ours, X, cache, lengths)
    demand_pieces(case, given, full_attention(state, H, X), lengths, "Y")


@check(CachedAttention, weight=2, see="The mask of what comes next")
def several_at_once(attention, case):
    """agrees with torch when several positions come at once, again and again"""
    ours, state, B, T, D, H = attention_pair(case, attention)
    X, cache = case.randn(B, T, D), ours.new_cache(B, T + 1)
    lengths = [2, 3, T - 5]
    given = in_pieces(ours, X, cache, lengths)
    demand_pieces(case, given, full_attention(state, H, X), lengths, "Y")


@check(CachedAttention, see="The mask of what comes next")
def take_turns(attention, case):
    """keeps two texts apart whose pieces, of the same lengths at other places, take turns"""
    ours, state, B, _, D, H = attention_pair(case, attention)
    texts, lengths = [case.randn(B, 8, D) for _ in range(2)], ([2, 3, 2, 1], [3, 2, 1, 2])
    caches, starts = [ours.new_cache(B, 8) for _ in texts], [0, 0]
    expected = [full_attention(state, H, X) for X in texts]
    for step in range(4):
        for text in (0, 1):
            start, stop = starts[text], starts[text] + lengths[text][step]
            Y = ours(texts[text][:, start:stop], caches[text])
            where = f"Y of positions {start} to {stop - 1} of text {'AB'[text]}"
            case.equal(Y, expected[text][:, start:stop], where)
            starts[text] = stop


@check(CachedAttention, see="Truncating the cache")
def goes_back(attention, case):
    """continues correctly after the cache was truncated"""
    ours, state, B, T, D, H = attention_pair(case, attention)
    X, cache = case.randn(B, T, D), ours.new_cache(B, T)
    ours(X, cache)
    cache.truncate(T - 2)
    other = torch.cat([X[:, : T - 2], case.randn(B, 2, D)], dim=1)
    expected = full_attention(state, H, other)[:, -2:]
    case.equal(ours(other[:, -2:], cache), expected, "Y after truncate")


def demand_counts(case: Case, found: list, expected: list[tuple[int, int]], when: str) -> None:
    """Demand dicts of two whole numbers, "tokens" and "pairs"."""
    for name, wanted in zip(("tokens", "pairs"), zip(*expected, strict=True), strict=True):
        for counts in found:
            case.that(
                isinstance(counts, dict) and isinstance(counts.get(name), (int, float)),
                f'counts should hold a number at "{name}", yours does not.',
            )
        given = torch.tensor([float(counts[name]) for counts in found], dtype=torch.float64)
        case.equal(given, torch.tensor(wanted).double(), f"{name} {when}", rtol=0, atol=0)


@check(CachedAttention, see="Count while it runs")
def counts(attention, case):
    """counts the tokens that ask and the pairs of a query and a key that are scored"""
    ours, _, B, _, D, _ = attention_pair(case, attention)
    X, cache = case.randn(B, 9, D), ours.new_cache(B, 40)
    found, expected, read, pairs = [], [], 0, 0
    for piece in X.split([3, 1, 2, 1, 1, 1], dim=1):
        ours(piece, cache)
        read += piece.shape[1]
        pairs += piece.shape[1] * read
        found.append(dict(ours.counts))
        expected.append((read, pairs))
    demand_counts(case, found, expected, "counted after each piece")
    for length in (9, 2, 1, 4, 3, 2):
        ours(X[:, :length])
        read, pairs = read + length, pairs + length**2
        found.append(dict(ours.counts))
        expected.append((read, pairs))
    demand_counts(case, found, expected, "counted after more texts, without a cache,")


@check(CachedAttention, see="What a cache must not keep")
def half(attention, case):
    """computes in full precision with what it reads from a cache in half precision"""
    ours, state, B, T, D, H = attention_pair(case, attention)
    X, cache = case.randn(B, T, D), ours.new_cache(B, T, torch.float16)
    expected = grouped(state, H, H, X, torch.float16)
    lengths = [T - 2, 1, 1]
    given = in_pieces(ours, X, cache, lengths)
    for Y in given:
        case.shape(Y, tuple(Y.shape), "Y")
        case.that(Y.dtype == X.dtype, f"Y should be {X.dtype} as X is, yours is {Y.dtype}.")
    what = "Y, with a cache in half precision,"
    demand_pieces(case, given, expected, lengths, what)


@check(CachedAttention, see="Attention with a cache")
def full(attention, case):
    """raises ValueError when the cache has no room, and neither changes it nor counts"""
    ours, state, B, T, D, H = attention_pair(case, attention)
    X, cache = case.randn(B, T, D), ours.new_cache(B, T)
    ours(X[:, :-1], cache)
    case.raises(ValueError, lambda: ours(X[:, :2], cache), "the cache has room for one, two come")
    expected = [(T - 1, (T - 1) ** 2)]
    demand_counts(case, [ours.counts], expected, "counted after a call that was refused")
    expected = full_attention(state, H, X)[:, -1:]
    case.equal(ours(X[:, -1:], cache), expected, "Y of the last position there is room for")


@check(CachedAttention, see="What a cache must not keep")
def gradient(attention, case):
    """passes gradients back to X and to all weights when there is no cache"""
    ours, state, B, T, D, H = attention_pair(case, attention)
    X, seen = case.randn(B, T, D).requires_grad_(), case.randn(B, T, D)
    leaves = {name: value.clone().requires_grad_() for name, value in state.items()}
    expected = torch.autograd.grad(grouped(leaves, H, H, X), [X, *leaves.values()], seen)
    wanted = dict(zip(leaves, expected[1:], strict=True))
    Y = ours(X)
    case.trains(Y, "Y")
    Y.backward(seen)
    parameters = dict(ours.named_parameters())
    for name in ("W_Q", "W_K", "W_V", "W_O", "b_V"):
        found = parameters[name].grad
        case.that(found is not None, f"A gradient should reach {name}, none does.")
        case.equal(found, wanted[name], f"gradient of {name}")
    case.gradient(X, expected[0], "X")
    case.learns(ours)


def model_pair(case: Case, model, L: int = 2, room: int = 1) -> tuple:
    """Make a student's model and a function with the logits of torch's layers; and texts."""
    B, T, H, D_h = case.sizes(4, low=3)
    ours, theirs = gpt_pair(case, model, 13, room * (T + 4), H, D_h, L)
    return ours, theirs, case.integers(0, 13, B, T + 4)


@check(CachedGPT, see="The whole model")
def whole_text(model, case):
    """agrees with a stack of torch's layers on whole texts, without caches"""
    ours, theirs, tokens = model_pair(case, model)
    case.equal(ours(tokens), theirs(tokens), "logits")


@check(CachedGPT, weight=3, see="The whole model")
def prefill_and_decode(model, case):
    """gives the logits of the whole text when it reads it piece by piece, with caches"""
    ours, theirs, tokens = model_pair(case, model, room=2)
    B, T = tokens.shape
    lengths = [T - 3, 1, 1, 1]
    caches = ours.new_caches(B, 2 * T)
    given = [ours(piece, caches) for piece in tokens.split(lengths, dim=1)]
    demand_pieces(case, given, theirs(tokens), lengths, "logits")


@check(CachedGPT, see="The whole model")
def several_at_once(model, case):
    """gives the logits of the whole text when several tokens come at once"""
    ours, theirs, tokens = model_pair(case, model, room=2)
    B, T = tokens.shape
    lengths = [1, 3, T - 4]
    caches = ours.new_caches(B, 2 * T)
    given = [ours(piece, caches) for piece in tokens.split(lengths, dim=1)]
    demand_pieces(case, given, theirs(tokens), lengths, "logits")


@check(CachedGPT, see="The whole model")
def full(model, case):
    """raises ValueError when old and new tokens together are more than the context"""
    ours, theirs, tokens = model_pair(case, model, L=1)
    B, T = tokens.shape
    caches = ours.new_caches(B, T + 3)
    ours(tokens[:, :-1], caches)
    case.raises(
        ValueError,
        lambda: ours(tokens[:, :2], caches),
        f"2 tokens come after {T - 1}, and the context is {T}",
    )
    given, expected = ours(tokens[:, -1:], caches), theirs(tokens)[:, -1:]
    case.equal(given, expected, "logits of the last token, after two that did not fit")


def writer_pair(case: Case, writer, B: int = 5, T: int = 3, context: int = 12) -> tuple:
    """Make a student's writer, torch's logits for it, and texts of 11 different tokens."""
    ours, theirs = gpt_pair(case, writer, 11, context, 2, 3, 1)
    return ours, theirs, case.integers(0, 11, B, T)


@check(CachedWriter, weight=2, see="Write with a cache")
def greedy(writer, case):
    """writes the best tokens, as it would without a cache"""
    ours, theirs, tokens = writer_pair(case, writer)
    expected = continued(theirs, tokens, 6, context=12)
    with asking("Does each step read only what has not been read yet?"):
        case.equal(ours.generate_with_cache(tokens, 6, 0.0), expected, "texts")


def drawn(theirs, tokens: Tensor, count: int, generator=None, **options) -> Tensor:
    """Draw tokens after reading the whole text for each."""
    for _ in range(count):
        p = token_probabilities(theirs(tokens)[:, -1], **options)
        tokens = torch.cat([tokens, torch.multinomial(p, 1, generator=generator)], dim=1)
    return tokens


@check(CachedWriter, see="Write with a cache")
def draws(writer, case):
    """draws the same tokens as without a cache, from the same generator"""
    ours, theirs, tokens = writer_pair(case, writer)
    for seed, options in enumerate([{"temperature": 1.7}, {"top_k": 3}, {"top_p": 0.7}]):
        generator = torch.Generator().manual_seed(seed)
        given = ours.generate_with_cache(tokens, 6, generator=generator, **options)
        (name, value), *_ = options.items()
        again = torch.Generator().manual_seed(seed)
        expected = drawn(theirs, tokens, 6, again, **options)
        case.equal(given, expected, f"texts drawn with {name} {value}")


@check(CachedWriter, weight=2, see="Count while it runs")
def reads_once(writer, case):
    """reads the prompt in one go, and every other token once, except the last"""
    ours, _, tokens = writer_pair(case, writer, T=5)
    found, expected, read, pairs = [], [], 0, 0
    for prompt, count in [(4, 5), (2, 3), (1, 1), (3, 4), (5, 2), (1, 2)]:
        ours.generate_with_cache(tokens[:, :prompt], count, 0.0)
        found.append(dict(ours.get_submodule("blocks.0.attention").counts))
        pieces = [prompt] + [1] * (count - 1)
        read += sum(pieces)
        pairs += sum(new * sum(pieces[: n + 1]) for n, new in enumerate(pieces))
        expected.append((read, pairs))
    demand_counts(case, found, expected, "counted after each of six texts")


@check(CachedWriter, see="Where it ends")
def full(writer, case):
    """fills the context, and raises ValueError when there is more to read"""
    ours, theirs, tokens = writer_pair(case, writer, T=9, context=10)
    expected = continued(theirs, tokens, 2, context=10)
    with asking("Of 9 tokens and 2 new ones 10 are read, and the context is 10."):
        case.equal(ours.generate_with_cache(tokens, 2, 0.0), expected, "texts of 11 tokens")
    before = ours.get_submodule("blocks.0.attention").counts
    before = before["tokens"], before["pairs"]
    case.raises(
        ValueError,
        lambda: ours.generate_with_cache(tokens, 3, 0.0),
        "9 tokens are given, 2 more must be read, and the context is 10",
    )
    found = ours.get_submodule("blocks.0.attention").counts
    demand_counts(case, [found], [before], "counted after a text that is too long")


@check(CachedWriter, see="Where it ends")
def empty(writer, case):
    """raises ValueError when the texts are empty"""
    ours, _, tokens = writer_pair(case, writer)
    for count in (2, 0):
        call = functools.partial(ours.generate_with_cache, tokens[:, :0], count)
        case.raises(ValueError, call, f"the texts are empty and count is {count}")


def ends(written, stop: int) -> dict[int, int]:
    """Tell after how many tokens each row has its first stop; rows without one are left out."""
    return {
        row: tokens.tolist().index(stop) + 1
        for row, tokens in enumerate(written)
        if stop in tokens.tolist()
    }


@check(CachedWriter, weight=2, see="Where it ends")
def stops(writer, case):
    """writes only stop after a text's end, and finishes when all texts have ended"""
    goes_on = torch.tensor(False)
    while not goes_on:  # until the first text would write something else than stop after its end
        ours, theirs, tokens = writer_pair(case, writer, B=60)
        written = continued(theirs, tokens, 7, context=12)
        found = {stop: ends(written[:, 3:], stop) for stop in range(11)}
        spread = {s: max(n.values()) - min(n.values()) for s, n in found.items() if n}
        stop = max(spread, key=spread.get)
        rows = sorted(found[stop], key=found[stop].get)
        rows = [rows[0], rows[-1]]
        lengths = [found[stop][row] for row in rows]
        goes_on = (written[rows[0], 3 + lengths[0] : 3 + lengths[1]] != stop).any()
    expected = written[rows, : 3 + lengths[1]]
    expected[0, 3 + lengths[0] :] = stop
    given = ours.generate_with_cache(tokens[rows], 8, 0.0, stop=stop)
    case.equal(given, expected, "texts with a stop")
    given = ours.generate_with_cache(tokens[rows[:1]], 8, 0.0, stop=stop)
    case.equal(given, written[rows[:1], : 3 + lengths[0]], "a text with a stop")


@check(CachedWriter, see="Where it ends")
def stops_at_token_0(writer, case):
    """stops at token 0 as at any other"""
    ours, theirs, tokens = writer_pair(case, writer, B=1)
    written = continued(theirs, tokens, 7, context=12)
    stop = int(written[0, 3 + 2])
    order = torch.arange(11)
    order[0], order[stop] = stop, 0  # the two tokens change places
    state = dict(ours.state_dict())
    ours.load_state_dict(state | {"token.weight": state["token.weight"][order]})
    length = 3 + written[0, 3:].tolist().index(stop) + 1
    given = ours.generate_with_cache(order[tokens], 7, 0.0, stop=0)
    case.equal(given, order[written[:, :length]], "a text with stop token 0")


@check(CachedWriter, see="Where it ends")
def stop_given(writer, case):
    """goes on after a prompt whose last token is the stop token"""
    ours, theirs, tokens = writer_pair(case, writer, B=8)
    for stop in (3, 7):
        tokens[:, -1] = stop
        expected = continued(theirs, tokens, 1, context=12)
        what = f"texts of one more token, after stop token {stop},"
        case.equal(ours.generate_with_cache(tokens, 1, 0.0, stop=stop), expected, what)


STEPS = [(1, 1), (1, 2), (1, 7), (5, 1), (4, 6), (11, 30)]  # prompts, and tokens to write


def demand_operations(case: Case, operations, cached: bool, name: str) -> None:
    """Demand one of the counts for all STEPS."""
    found, expected = [], []
    for prompt, count in STEPS:
        result = operations(prompt, count, cached)
        demand_numbers(case, result)
        found.append(float(result[name]))
        lengths = range(prompt, prompt + count)
        read = [1 if cached and n > prompt else n for n in lengths]
        each = [new * n for new, n in zip(read, lengths, strict=True)]
        expected.append(float(sum(each) if name == "pairs" else sum(read)))
    numbers = torch.tensor([found, expected], dtype=torch.float64)
    wrong = [step for step, a, b in zip(STEPS, found, expected, strict=True) if a != b]
    prompt, count = wrong[0] if wrong else STEPS[0]
    how = "with" if cached else "without"
    what = f"{name} {how} a cache for prompt, count = {prompt}, {count}"
    case.equal(numbers[0], numbers[1], what, rtol=0, atol=0)


def demand_numbers(case: Case, result: object) -> None:
    """Demand whole numbers at "tokens" and "pairs"."""
    case.that(
        isinstance(result, dict)
        and all(isinstance(result.get(name), (int, float)) for name in ("tokens", "pairs")),
        'The result should be a dict of "tokens" and "pairs", yours is not.',
    )


@check(attention_operations, weight=2, see="Count on paper")
def without(operations, case):
    """counts the pairs when the whole text is read for every token"""
    demand_operations(case, operations, False, "pairs")


@check(attention_operations, weight=2, see="Count on paper")
def with_a_cache(operations, case):
    """counts the pairs when the prompt is read once, and then single tokens"""
    demand_operations(case, operations, True, "pairs")


@check(attention_operations, see="Count on paper")
def tokens(operations, case):
    """counts the tokens that are read, with a cache and without"""
    demand_operations(case, operations, False, "tokens")
    demand_operations(case, operations, True, "tokens")


@check(attention_operations, see="Count on paper")
def thousand(operations, case):
    """counts 333 833 500 pairs for a thousand tokens, and 500 500 with a cache"""
    for cached, expected in ((False, 333_833_500), (True, 500_500)):
        result = operations(1, 1000, cached)
        demand_numbers(case, result)
        how = "with" if cached else "without"
        case.that(
            result["pairs"] == expected,
            f"pairs {how} a cache should be {expected}, yours is {result['pairs']}.",
        )


@check(attention_operations, see="Count on paper")
def long_prompt(operations, case):
    """counts N tokens and N² pairs for the first new token, exactly, however large N is"""
    N = 2**27 + 1
    for cached in (False, True):
        result = operations(N, 1, cached)
        demand_numbers(case, result)
        for name, expected in (("tokens", N), ("pairs", N * N)):
            case.that(
                result[name] == expected,
                f"{name} for one token after {N} should be exactly {expected}, yours is "
                f"{result[name]!r:.30}.",
            )


@check(attention_operations, see="Count on paper")
def refuses(operations, case):
    """raises ValueError when there is no prompt, or nothing to write"""
    case.raises(ValueError, lambda: operations(0, 3, True), "the prompt is empty")
    case.raises(ValueError, lambda: operations(3, 0, False), "count is 0")


SHAPES = [  # L, G, D_h, N, B
    (2, 3, 5, 7, 1),
    (3, 1, 8, 4, 6),
    (1, 6, 2, 11, 5),
    (4, 2, 3, 9, 2),
    (5, 7, 1, 3, 4),
    (2, 5, 6, 1, 3),
]


KINDS = ["float16", "bfloat16", "float32", "float64", "int8", "int32"]


def stored(L: int, G: int, D_h: int, N: int, B: int, dtype: torch.dtype) -> int:
    """Make the tensors, and count the bytes of their memory."""
    layers = [
        [torch.empty(B, G, N, D_h, dtype=dtype) for _ in ("keys", "values")] for _ in range(L)
    ]
    return sum(part.untyped_storage().nbytes() for layer in layers for part in layer)


@check(kv_cache_bytes, weight=2, see="What it costs")
def values(size, case):
    """counts the bytes that tensors of these shapes take"""
    kinds = [getattr(torch, name) for name in KINDS]
    expected = torch.tensor([stored(*s, kind) for s, kind in zip(SHAPES, kinds, strict=True)])
    found = [  # the first in the default, half precision
        float(size(*shape) if kind == torch.float16 else size(*shape, kind))
        for shape, kind in zip(SHAPES, kinds, strict=True)
    ]
    given = torch.tensor(found, dtype=torch.float64)
    case.equal(given, expected.double(), f"bytes in {', '.join(KINDS)}", rtol=0, atol=0)


@check(kv_cache_bytes, see="What it costs")
def dtypes(size, case):
    """uses the right number of bytes for each dtype"""
    kinds = [getattr(torch, name) for name in KINDS]
    expected = torch.tensor([stored(*SHAPES[1], dtype) for dtype in kinds])
    found = [float(size(*SHAPES[1], dtype)) for dtype in kinds]
    given = torch.tensor(found, dtype=torch.float64)
    case.equal(given, expected.double(), f"bytes in {', '.join(KINDS)}", rtol=0, atol=0)


@check(kv_cache_bytes, see="What it costs")
def one_gibibyte(size, case):
    """is 1 GiB for 32 layers of 4096 features and 2048 tokens, and 1/32 of that with one head"""
    many, one = size(32, 32, 128, 2048), size(32, 1, 128, 2048)
    case.that(many == 2**30, f"The bytes should be {2**30}, yours are {many}.")
    case.that(one == 2**25, f"The bytes of one head should be {2**25}, yours are {one}.")


def grouped(state: dict[str, Tensor], H: int, G: int, X: Tensor, dtype=None) -> Tensor:
    """Let torch attend over a whole text with G heads of keys and values, kept in dtype."""
    (B, T, D), D_h = X.shape, X.shape[2] // H
    Q, K, V = (X @ state[f"W_{x}"] + state[f"b_{x}"] for x in "QKV")
    Q = Q.view(B, T, H, D_h).transpose(1, 2)
    K, V = (part.view(B, T, G, D_h).transpose(1, 2) for part in (K, V))
    if dtype is not None:
        K, V = K.to(dtype).to(X.dtype), V.to(dtype).to(X.dtype)
    Y = F.scaled_dot_product_attention(Q, K, V, is_causal=True, enable_gqa=True)
    return Y.transpose(1, 2).reshape(B, T, D) @ state["W_O"] + state["b_O"]


def grouped_pair(case: Case, attention, H: int, G: int, D_h: int) -> tuple:
    """Make a student's layer with drawn weights, and return it with its state."""
    state = attention_state(case, H * D_h, G * D_h)
    ours = made(attention, state, H * D_h, H, G, bias=True)
    return ours, state


@check(GroupedQueryAttention, weight=3, see="Fewer heads of keys and values")
def values(attention, case):
    """agrees with torch's scaled_dot_product_attention, enable_gqa, on a whole text"""
    B, T, D_h = case.sizes(3, low=3)
    ours, state = grouped_pair(case, attention, 6, 2, D_h)
    X = case.randn(B, T, 6 * D_h)
    case.equal(ours(X), grouped(state, 6, 2, X), "Y")


@check(GroupedQueryAttention, weight=2, see="Fewer heads of keys and values")
def prefill_and_decode(attention, case):
    """agrees with torch piece by piece, with a cache of G heads"""
    B, T, D_h = case.sizes(3, low=5)
    ours, state = grouped_pair(case, attention, 6, 2, D_h)
    X, cache = case.randn(B, T, 6 * D_h), ours.new_cache(B, T)
    lengths = [T - 4, 1, 2, 1]
    with asking("Do K and V still have G heads when they are appended?"):
        given = in_pieces(ours, X, cache, lengths)
    demand_pieces(case, given, grouped(state, 6, 2, X), lengths, "Y")
    K, V = case.unpack(cache.read(), "K", "V")
    case.shape(K, (B, 2, T, D_h), "K in the cache")
    case.shape(V, (B, 2, T, D_h), "V in the cache")


@check(GroupedQueryAttention, see="Fewer heads of keys and values")
def both_ends(attention, case):
    """is multi-head attention for G = H, and multi-query attention for G = 1"""
    B, T, D_h = case.sizes(3, low=3)
    X = case.randn(B, T, 4 * D_h)
    ours, state = grouped_pair(case, attention, 4, 4, D_h)
    case.equal(ours(X), full_attention(state, 4, X), "Y for G = H")
    ours, state = grouped_pair(case, attention, 4, 1, D_h)
    case.equal(ours(X), grouped(state, 4, 1, X), "Y for G = 1")


@check(GroupedQueryAttention, see="Fewer heads of keys and values")
def parameters(attention, case):
    """has smaller W_K and W_V, and raises ValueError when G does not divide H"""
    D_h = 5
    for bias in (False, True):
        ours = attention(6 * D_h, 6, 3, bias=bias)
        found = {name: tuple(value.shape) for name, value in dict(ours.state_dict()).items()}
        sizes = {x: (3 if x in "KV" else 6) * D_h for x in "QKVO"}
        expected = {f"W_{x}": (6 * D_h, size) for x, size in sizes.items()}
        if bias:
            expected |= {f"b_{x}": (size,) for x, size in sizes.items()}
        for name, shape in expected.items():
            given = found.get(name, "missing")
            case.that(given == shape, f"{name} should have shape {shape}, yours is {given}.")
        case.that(
            len(found) == len(expected),
            f"There should be no other weights, yours are {sorted(found)}.",
        )
        case.that(ours.G == 3, f"G should be 3, yours is {ours.G}.")
    for D in (6 * D_h, 24):
        case.raises(ValueError, lambda D=D: attention(D, 6, 4), "6 heads are to share 4 groups")
    case.raises(ValueError, lambda: attention(24, 2, 4), "2 heads are to share 4 groups")


@check(GroupedQueryAttention, see="Fewer heads of keys and values")
def fresh(attention, case):
    """draws W_K and W_V from N(0, 1/D), and starts their biases at zero"""
    D, H, G = 96, 6, 3
    state = dict(attention(D, H, G, bias=True).state_dict())
    for name in ("W_K", "W_V"):
        case.shape(state.get(name), (D, G * D // H), name)
        value = state[name].double()
        case.equal(value.std(), D**-0.5, f"standard deviation of {name}", rtol=0.06)
        case.equal(value.mean(), 0.0, f"mean of {name}", atol=5 * value.numel() ** -0.5 / 9)
    for name in ("b_K", "b_V"):
        case.equal(state.get(name), torch.zeros(G * D // H), name)


@check(GroupedQueryAttention, see="Count while it runs")
def counts(attention, case):
    """counts the tokens that ask and the pairs that are scored, as before"""
    B, D_h = case.sizes(2, low=3)
    ours, _ = grouped_pair(case, attention, 4, 2, D_h)
    X, cache = case.randn(B, 10, 4 * D_h), ours.new_cache(B, 10)
    found, expected, read, pairs = [], [], 0, 0
    for piece in X.split([4, 1, 2, 1, 1, 1], dim=1):
        ours(piece, cache)
        found.append(dict(ours.counts))
        read += piece.shape[1]
        pairs += read * piece.shape[1]
        expected.append((read, pairs))
    ours(X)
    found.append(dict(ours.counts))
    expected.append((read + 10, pairs + 100))
    demand_counts(case, found, expected, "counted after each piece, and without a cache")


def demand_state(case: Case, given: object, expected: dict[str, Tensor]) -> None:
    """Demand the weights of a state dict."""
    names = set(given) if isinstance(given, dict) else set()
    missing, more = sorted(set(expected) - names), sorted(map(str, names - set(expected)))
    wrong = (
        f"{missing[0]} is missing" if missing else f"{more[0]} does not belong" if more else None
    )
    case.that(wrong is None, f"The names should be those that were given, in yours {wrong}.")
    for name, value in expected.items():
        case.equal(given[name], value, name)


def pooled(state: dict[str, Tensor], H: int, G: int) -> dict[str, Tensor]:
    """Average the heads of each group, head by head."""
    found = {}
    for name, value in state.items():
        if name[-3:] in ("W_K", "W_V", "b_K", "b_V"):
            heads = value.chunk(H, dim=-1)
            size = H // G
            groups = [heads[g * size : (g + 1) * size] for g in range(G)]
            value = torch.cat([sum(group) / size for group in groups], dim=-1)
        found[name] = value
    return found


@check(mha_to_gqa, weight=3, see="Converting a trained model")
def values(convert, case):
    """gives each group the mean of its heads"""
    D_h = 5
    for G in (2, 3, 1):
        state = attention_state(case, 6 * D_h)
        demand_state(case, convert(state, 6, G), pooled(state, 6, G))


@check(mha_to_gqa, weight=2, see="Converting a trained model")
def model(convert, case):
    """converts every layer of a model, and leaves everything else as it is"""
    state = {"token.weight": case.randn(9, 12), "norm.bias": case.randn(12)}
    alone = {"skipW_K": case.randn(12, 12), "W_V.scale": case.randn(12)}
    for n in (0, 1, 10):
        layer = attention_state(case, 12)
        state |= {f"blocks.{n}.attention.{name}": value for name, value in layer.items()}
        state[f"blocks.{n}.expand.weight"] = case.randn(48, 12)
    demand_state(case, convert(state | alone, 4, 2), pooled(state, 4, 2) | alone)


@check(mha_to_gqa, see="Converting a trained model")
def nothing_lost(convert, case):
    """loses nothing when the heads of a group have the same keys and values"""
    H, G, D_h = 6, 2, 3
    few = attention_state(case, H * D_h, G * D_h)
    many = dict(few)
    for name in ("W_K", "W_V", "b_K", "b_V"):
        heads = few[name].chunk(G, dim=-1)
        many[name] = torch.cat([head for head in heads for _ in range(H // G)], dim=-1)
    demand_state(case, convert(many, H, G), few)


@check(mha_to_gqa, see="Converting a trained model")
def all_or_none(convert, case):
    """changes nothing for G = H, and raises ValueError when G does not divide H"""
    state = attention_state(case, 12)
    demand_state(case, convert(state, 6, 6), state)
    case.raises(ValueError, lambda: convert(state, 6, 4), "6 heads are to share 4 groups")


def latent_layer(case: Case, attention, D_h: int, D_c: int, half: int, **options) -> tuple:
    """Make a student's layer of 3 heads with drawn weights; return it and them."""
    D, D_R = 3 * D_h, 2 * half
    shapes = {
        "W_Q": (D, 3 * (D_h + D_R)),
        "W_DKV": (D, D_c),
        "W_KR": (D, D_R),
        "W_UK": (D_c, D),
        "W_UV": (D_c, D),
        "W_O": (D, D),
    }
    state = {name: 1.5 * case.randn(*shape) / shape[0] ** 0.5 for name, shape in shapes.items()}
    state["norm.weight"] = case.rand(D_c) + 0.5
    ours = made(attention, state, D, 3, D_c, D_R, **options)
    return ours, state


def latents(state: dict[str, Tensor], X: Tensor, base: float = 10000.0) -> Tensor:
    """Make what is kept of each position: its latent vector and its turned key."""
    weight = state["norm.weight"]
    C = F.rms_norm(X @ state["W_DKV"], weight.shape, weight, 1e-5)
    return torch.cat([C, rotated(X @ state["W_KR"], base=base)], dim=-1)


@once
def from_latents(state: dict[str, Tensor], X: Tensor, base: float = 10000.0) -> Tensor:
    """Attend head by head over a whole text, by torch's attention."""
    D_c, D = state["W_UK"].shape
    D_h, kept = D // 3, latents(state, X, base)
    C, K_R = kept[..., :D_c], kept[..., D_c:]
    heads = []
    for h, queries in enumerate((X @ state["W_Q"]).chunk(3, dim=-1)):
        own = slice(h * D_h, h * D_h + D_h)
        Q = torch.cat([queries[..., :D_h], rotated(queries[..., D_h:], base=base)], dim=-1)
        K = torch.cat([C @ state["W_UK"][:, own], K_R], dim=-1)
        V = C @ state["W_UV"][:, own]
        heads.append(F.scaled_dot_product_attention(Q, K, V, is_causal=True))
    return torch.cat(heads, dim=-1) @ state["W_O"]


@check(LatentAttention, weight=2, see="One latent vector for all heads", single={"B": 0, "T": 1})
def values(attention, case):
    """agrees with torch's scaled_dot_product_attention, head by head, on a whole text"""
    B, T, D_h, D_c, half = case.sizes(5, low=3)
    ours, state = latent_layer(case, attention, D_h, D_c, half)
    X = case.randn(B, T, 3 * D_h)
    Y = ours(X)
    case.trains(Y, "Y")
    case.equal(Y, from_latents(state, X), "Y")


@check(LatentAttention, weight=2, see="What is kept")
def kept(attention, case):
    """keeps the normalised latent and the turned key of each position, and nothing else"""
    B, T, D_h, D_c, half = case.sizes(5, low=3)
    ours, state = latent_layer(case, attention, D_h, D_c, half)
    X = case.randn(B, T + 3, 3 * D_h)
    for way in ("forward", "absorbed"):
        cache = ours.new_cache(B, T + 3)
        in_pieces(ours if way == "forward" else ours.absorbed, X, cache, [T, 1, 2])
        case.equal(cache.read(), latents(state, X), f"what {way} keeps")


@check(LatentAttention, weight=2, see="What is kept")
def pieces(attention, case):
    """goes on with a text where it stopped"""
    B, D_h, D_c, half = case.sizes(4, low=3)
    ours, state = latent_layer(case, attention, D_h, D_c, half)
    X = case.randn(B, 9, 3 * D_h)
    expected = from_latents(state, X)
    for lengths in ([6, 1, 1, 1], [2, 4, 3]):
        given = in_pieces(ours, X, ours.new_cache(B, 9), lengths)
        demand_pieces(case, given, expected, lengths, "Y")


@check(LatentAttention, weight=3, see="Never make a key", single={"B": 0, "T": 1})
def absorbed(attention, case):
    """gives the same result when the up-projections are absorbed"""
    B, T, D_h, D_c, half = case.sizes(5, low=3)
    ours, state = latent_layer(case, attention, D_h, D_c, half)
    X = case.randn(B, T, 3 * D_h)
    case.equal(ours.absorbed(X), from_latents(state, X), "Y, absorbed")


@check(LatentAttention, weight=2, see="Never make a key")
def absorbed_pieces(attention, case):
    """goes on with a text when the up-projections are absorbed"""
    B, D_h, D_c, half = case.sizes(4, low=3)
    ours, state = latent_layer(case, attention, D_h, D_c, half)
    X = case.randn(B, 9, 3 * D_h)
    expected = from_latents(state, X)
    for lengths in ([6, 1, 1, 1], [2, 4, 3]):
        given = in_pieces(ours.absorbed, X, ours.new_cache(B, 9), lengths)
        demand_pieces(case, given, expected, lengths, "Y, absorbed,")


@check(LatentAttention, weight=2, see="Never make a key")
def no_keys(attention, case):
    """makes no key of a head from a latent when the up-projections are absorbed"""
    B, D_h, D_c, half = case.sizes(4, low=3)
    ours, state = latent_layer(case, attention, D_h, D_c, half)
    X, huge = case.randn(B, 5, 3 * D_h), 2.0**600
    case.equal(ours.absorbed(X), from_latents(state, X), "Y, absorbed,")
    expected = dict(state)
    expected["W_Q"] = state["W_Q"].clone()
    expected["W_Q"][:, 1] = 0.0  # no query asks for feature 1 of head 0
    extreme = dict(expected)
    extreme["norm.weight"] = state["norm.weight"] * huge
    extreme["W_UK"], extreme["W_UV"] = state["W_UK"] / huge, state["W_UV"] / huge
    extreme["W_UK"][:, 1] = huge  # c W_UK is more than a float64 holds there
    ours.load_state_dict(extreme)
    Y = ours.absorbed(X)
    case.shape(Y, tuple(X.shape), "Y, absorbed,")
    case.that(
        Y.detach().isfinite().all(),
        "Y should be finite where a key that no query asks for is not, yours is not: is a key made "
        "from the latents?",
    )
    case.equal(Y, from_latents(expected, X), "Y, absorbed,")


@check(LatentAttention, weight=2, see="Never make a key")
def no_values(attention, case):
    """makes no value of a head from a latent when the up-projections are absorbed"""
    B, D_h, D_c, half = case.sizes(4, low=3)
    ours, state = latent_layer(case, attention, D_h, D_c, half)
    X, huge = case.randn(B, 5, 3 * D_h), 2.0**600
    case.equal(ours.absorbed(X), from_latents(state, X), "Y, absorbed,")
    # Latent feature 0 is 0 but at the last position, which no other sees: there c W_UV, and only
    # that, is more than a float64 holds.
    X[:, :-1, 0] = 0.0
    state["W_DKV"][:, 0] = 0.0
    state["W_DKV"][0, 0] = 1.0
    state["W_UK"][0] = 0.0
    expected = from_latents(state | {"W_UV": state["W_UV"].index_fill(0, torch.tensor(0), 0)}, X)
    extreme = state | {"norm.weight": state["norm.weight"].clone(), "W_UV": state["W_UV"].clone()}
    extreme["norm.weight"][0] = extreme["W_UV"][0] = huge
    ours.load_state_dict(extreme)
    Y = ours.absorbed(X)
    case.shape(Y, tuple(X.shape), "Y, absorbed,")
    seen = Y[:, :-1]
    case.that(
        seen.detach().isfinite().all(),
        "Y should be finite where a value that nobody sees is not, yours is not: is a value made "
        "from the latents?",
    )
    case.equal(seen, expected[:, :-1], "Y, absorbed, but for the last position")


@check(LatentAttention, see="One latent vector for all heads")
def far_apart(attention, case):
    """gives what may not be seen no weight, also beside scores of -1e12"""
    ours, state = latent_layer(case, attention, 4, 5, 2)
    state |= {"W_Q": 1e12 * state["W_Q"]}
    ours.load_state_dict(state)
    X = case.randn(2, 7, 12)
    expected = from_latents(state, X)
    what = "where scores reach from -1e12 to 1e12"
    case.equal(ours(X), expected, f"Y {what}")
    case.equal(ours.absorbed(X), expected, f"Y, absorbed, {what}")


@check(LatentAttention, see="One latent vector for all heads")
def base(attention, case):
    """turns queries and keys as slowly as base says"""
    for slowness in (7.0, 900.0):
        ours, state = latent_layer(case, attention, 4, 5, 3, base=slowness)
        X = case.randn(2, 6, 12)
        expected = from_latents(state, X, slowness)
        case.equal(ours(X), expected, f"Y for base = {slowness:g}")
        case.equal(ours.absorbed(X), expected, f"Y, absorbed, for base = {slowness:g}")


@check(LatentAttention, see="One latent vector for all heads")
def gradients(attention, case):
    """passes the same gradients back to all weights, absorbed or not"""
    for way in ("forward", "absorbed"):
        ours, state = latent_layer(case, attention, 4, 5, 2)
        X, seen = case.randn(2, 6, 12), case.randn(2, 6, 12)
        leaves = {name: value.clone().requires_grad_() for name, value in state.items()}
        from_latents(leaves, X).backward(seen)
        Y = ours(X) if way == "forward" else ours.absorbed(X)
        case.trains(Y, f"what {way} gives")
        Y.backward(seen)
        parameters = dict(ours.named_parameters())
        for name, leaf in leaves.items():
            case.gradient(parameters[name], leaf.grad, f"{name} by {way}")
        case.learns(ours)


@check(LatentAttention, see="What is kept")
def half(attention, case):
    """computes in full precision with what it reads from a cache in half precision"""
    ours, state = latent_layer(case, attention, 4, 5, 2)
    X = case.randn(2, 6, 12)
    expected = from_latents(state, X)
    for way in ("forward", "absorbed"):
        cache = ours.new_cache(2, 6, torch.float16)
        call = ours if way == "forward" else ours.absorbed
        given = in_pieces(call, X, cache, [4, 1, 1])
        for Y in given:
            case.shape(Y, tuple(Y.shape), "Y")
            case.that(Y.dtype == X.dtype, f"Y should be {X.dtype} as X is, yours is {Y.dtype}.")
        joined = torch.cat(given, dim=1)
        case.equal(joined, expected, f"Y by {way}, half kept,", rtol=0.02, atol=0.02)


@check(LatentAttention, see="What is kept")
def rounded_once(attention, case):
    """attends to just what a cache in half precision holds, with queries in full precision"""
    ours, _ = latent_layer(case, attention, 4, 5, 2)
    X, names = case.randn(2, 6, 12), ("q_C", "q_R", "c", "k_R")
    cache = ours.new_cache(2, 6, torch.float16)
    for piece in X.split([4, 2], dim=1):
        q, _, c, k = case.unpack(ours.prepare(piece, cache), *names)
        kept = cache.read().double()
        case.equal(c, kept[..., :5], "c, half kept,")
        case.equal(k, kept[..., 5:], "k_R, half kept,")
        case.equal(q, case.unpack(ours.prepare(piece), *names)[0], "q_C, half kept,")


def converted(state: dict[str, Tensor], H: int, G: int) -> dict[str, Tensor]:
    """Average the heads of each group, if there are such groups."""
    if H % G:
        raise ValueError(f"{H} heads cannot be shared equally among {G} groups")
    for name, value in state.items():
        if name[-3:] in ("W_K", "W_V", "b_K", "b_V") and value.shape[-1] % H:
            raise ValueError(f"the last axis of {name} should be divisible by {H}")
    return pooled(state, H, G)


@check(mha_to_gqa_fault, see="One that trains as well")
def exposed(answer, case):
    """gives arguments with which the black box returns what is wrong"""
    demand_exposed(case, answer, "mha_to_gqa", converted)
