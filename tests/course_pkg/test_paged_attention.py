"""The references of paged_attention agree with torch, transformers and plain generation."""

import math
import random
from collections import deque
from itertools import pairwise

import pytest
import torch
from torch.nn import functional

from course_pkg.checking.models import SmallServed
from course_pkg.data import requests
from course_pkg.engine.requests import OutOfBlocks
from course_pkg.inference.contiguous import (
    ContiguousEngine,
    contiguous_attention,
    paged_reservations,
    reservations,
)
from course_pkg.inference.models import (
    ServedLlama,
    attend_to_all,
    generate_uncached,
    shipped,
)
from course_pkg.llama import Llama
from course_pkg.paged_attention import (
    BlockAllocator,
    BlockManager,
    BlockTable,
    PagedKVCache,
    PrefixCache,
    copy_on_write,
    fragmentation,
    online_softmax_merge,
    paged_attention,
    prefix_hash,
)

CLOSE = {"rtol": 1e-10, "atol": 1e-10}


def randn(*shape: int) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64)


@pytest.fixture(params=range(5))
def rng(request) -> random.Random:
    torch.manual_seed(request.param)
    return random.Random(request.param)


@pytest.fixture(scope="module")
def model() -> Llama:
    torch.manual_seed(0)
    return ServedLlama(Llama(V=61, D=24, H=6, G=2, L=2)).double()


def prompts_of(rng: random.Random, count: int, longest: int = 40) -> list[list[int]]:
    return [[rng.randrange(61) for _ in range(rng.randrange(1, longest))] for _ in range(count)]


def test_fragmentation_accounts_for_every_slot(rng):
    memory, need = 200, rng.randrange(1, 30)
    slots, regions, start = ["hole"] * memory, [], 0
    while (start := start + rng.randrange(20)) + 30 <= memory:
        size = rng.randrange(1, 30)
        final = rng.randrange(1, size + 1)
        now = rng.randrange(1, final + 1)
        regions.append((start, size, now, final))
        slots[start : start + size] = (
            ["tokens"] * now + ["reserved"] * (final - now) + ["internal"] * (size - final)
        )
        start += size
    text = "".join("." if slot == "hole" else "x" for slot in slots)
    for hole in text.split("x"):
        place = text.find(hole) if hole else 0
        kind = "external" if len(hole) < need else "free"
        slots[place : place + len(hole)] = [kind] * len(hole)
        text = text[:place] + "x" * len(hole) + text[place + len(hole) :]
    rng.shuffle(regions)
    expected = {
        kind: slots.count(kind) for kind in ("tokens", "reserved", "internal", "external", "free")
    }
    assert fragmentation(regions, memory, need) == expected


def test_merging_parts_is_attention_over_the_whole(rng):
    B, H, N, D_h = rng.sample(range(2, 12), 4)
    q, K, V = randn(B, H, 1, D_h), 20 * randn(B, H, N, D_h), randn(B, H, N, D_h)
    cuts = sorted(rng.choices(range(N + 1), k=3))
    Y, s = torch.zeros(B, H, 1, D_h).double(), torch.full((B, H, 1), -math.inf).double()
    for start, stop in zip([0, *cuts], [*cuts, N], strict=True):  # some parts are empty
        E = q @ K[:, :, start:stop].mT
        part = torch.softmax(E, dim=-1) @ V[:, :, start:stop]
        Y, s = online_softmax_merge(Y, s, part, torch.logsumexp(E, dim=-1))
    expected = functional.scaled_dot_product_attention(q, K, V, scale=1.0)
    torch.testing.assert_close(Y, expected, **CLOSE)
    torch.testing.assert_close(s, torch.logsumexp(q @ K.mT, dim=-1), **CLOSE)


@pytest.mark.parametrize("at_once", [1, 2, 100])
def test_paged_attention_is_torchs(rng, at_once):
    B, T, G, D_h, S = rng.sample(range(2, 9), 5)
    H = G * rng.randrange(1, 4)
    lengths = [T + rng.randrange(30) for _ in range(B)]
    N = sum(-(-length // S) for length in lengths) + 3
    order = rng.sample(range(N), N)
    K, V, Q = randn(G, N, S, D_h), randn(G, N, S, D_h), randn(B, T, H, D_h)
    tables = [[order.pop() for _ in range(-(-length // S))] for length in lengths]
    width = max(map(len, tables))
    padded = torch.tensor([table + [0] * (width - len(table)) for table in tables])
    Y = paged_attention(Q, K, V, padded, torch.tensor(lengths), at_once)
    for b, (table, length) in enumerate(zip(tables, lengths, strict=True)):
        keys, values = (X[:, table].flatten(1, 2)[:, :length] for X in (K, V))
        mask = torch.ones(T, length, dtype=torch.bool).tril(length - T)
        expected = functional.scaled_dot_product_attention(
            Q[b].transpose(0, 1)[None], keys[None], values[None], mask, enable_gqa=True
        )[0].transpose(0, 1)
        torch.testing.assert_close(Y[b], expected, **CLOSE)


def test_what_is_written_is_gathered(rng):
    L, N, S, G, D_h = rng.sample(range(2, 9), 5)
    cache, table = PagedKVCache(L, N, S, G, D_h, torch.float64), BlockTable(S)
    count = rng.randrange(1, N * S + 1)
    slots = table.append(count, rng.sample(range(N), table.missing(count)))
    K, V = randn(count, G, D_h), randn(count, G, D_h)
    cache.write(1, torch.tensor(slots), K, V)
    for given, expected in zip(cache.gather(1, table.blocks, count), (K, V), strict=True):
        assert torch.equal(given, expected)
    assert not cache.K[0].any()


def test_a_block_is_handed_out_once():
    allocator = BlockAllocator(3)
    assert {allocator.allocate() for _ in range(3)} == {0, 1, 2}
    with pytest.raises(OutOfBlocks, match="all 3 blocks are in use"):
        allocator.allocate()
    allocator.share(1)
    allocator.free(1)
    assert allocator.available == 0
    allocator.free(1)
    assert allocator.allocate() == 1
    allocator.free(2)
    for call in (allocator.free, allocator.share):
        with pytest.raises(ValueError, match="block 2 is not in use"):
            call(2)


def test_a_border_is_no_reason_to_copy():
    assert copy_on_write([5, 3], 8, 9, 4, [0, 0, 0, 2, 0, 2]) == []
    assert copy_on_write([5, 3], 7, 9, 4, [0, 0, 0, 2, 0, 2]) == [1]
    assert copy_on_write([5, 3], 0, 8, 4, [0, 0, 0, 1, 0, 2]) == [0]


def test_names_stand_for_whole_prefixes(rng):
    S = rng.randrange(1, 6)
    texts = [[rng.randrange(2) for _ in range(rng.randrange(5 * S))] for _ in range(60)]
    named = {}
    for text in texts:
        names = prefix_hash(text, S)
        assert len(names) == len(text) // S
        for n, name in enumerate(names, start=1):
            assert named.setdefault(name, text[: n * S]) == text[: n * S]
    assert len(named) == len({tuple(prefix) for prefix in named.values()})


def test_the_block_freed_first_is_forgotten_first():
    cache = PrefixCache(3)
    for name in "abc":
        cache.register(cache.allocate(), name)
    for block in (1, 0, 2):
        cache.free(block)
    assert cache.find("b") == 1 and cache.available == 2
    cache.free(1)
    assert cache.allocate() == 0
    assert [cache.find(name) for name in "abc"] == [None, 1, 2]


def test_a_block_is_freed_without_a_search():
    class Unsearched(deque):
        def search(self, *wanted):
            raise AssertionError("a search takes longer the more blocks there are")

        __iter__ = __contains__ = index = remove = search

    cache = PrefixCache(5)
    cache.unused = Unsearched(cache.unused)
    owned = [cache.allocate() for _ in range(3)]
    for block, name in zip(owned[:2], "ab", strict=True):
        cache.register(block, name)
    for block in owned:
        cache.free(block)
    assert list(cache.idle) == owned[:2] and cache.available == 5


def test_an_exhausted_manager_changes_nothing():
    manager = BlockManager(4, 2)
    manager.allocate(0, [1] * 9)
    manager.append_slots(0, 5)
    manager.fork(0, 1)
    before = list(manager.get_block_table(1)), list(manager.allocator.references)
    with pytest.raises(OutOfBlocks):
        manager.append_slots(1, 2)  # a copy and a new block, but one is left
    assert (manager.get_block_table(1), manager.allocator.references) == before
    assert manager.append_slots(1, 1) == [(before[0][2], manager.get_block_table(1)[2])]


@pytest.mark.parametrize("settings", [{}, {"tied": True, "base": 99.0}], ids=str)
def test_served_llama_is_llama(settings):
    torch.manual_seed(0)
    llama = Llama(V=61, D=24, H=6, G=2, L=2, **settings).double()
    served = ServedLlama(llama)
    tokens, rows = torch.randint(61, (30,)), torch.tensor([29, 4])
    with torch.no_grad():
        given = served(tokens, torch.arange(30), attend_to_all, rows)
        torch.testing.assert_close(given, llama(tokens[None])[0, rows], rtol=1e-10, atol=1e-10)
    assert served.shape == (2, 2, 4)


def test_a_window_is_not_served():
    with pytest.raises(ValueError, match="a window of 5"):
        ServedLlama(Llama(V=61, D=24, H=6, G=2, L=2, window=5))


def test_the_shipped_models_are_served():
    served = shipped("draft")
    prompt = list(range(300, 310))
    (added,) = generate_uncached(served, prompt, 1)
    assert added == int(served.llama(torch.tensor([prompt]))[0, -1].argmax())
    assert served.context == 256


@pytest.mark.parametrize("rng", [0, 1], indirect=True)
@pytest.mark.parametrize("continuous", [True, False])
def test_the_contiguous_engine_says_the_same(model, rng, continuous):
    prompts = prompts_of(rng, 7)
    counts = [rng.randrange(1, 15) for _ in prompts]
    engine = ContiguousEngine(model, memory=3 * 60, longest=60, continuous=continuous)
    expected = [generate_uncached(model, p, n) for p, n in zip(prompts, counts, strict=True)]
    assert engine.generate(prompts, counts) == expected


def test_reservations_never_overlap():
    drawn = requests.trace(60, 0, prompt=(20, 1.0), output=(30, 0.8), longest=128)
    seen = 0
    for regions, need in reservations(drawn, 600, lambda request: 128):
        ends = [(start, start + size) for start, size, _, _ in sorted(regions)]
        assert all(a[1] <= b[0] for a, b in pairwise(ends))
        assert ends[-1][1] <= 600 and need == 128
        assert all(now <= final <= size for _, size, now, final in regions)
        seen += 1
    assert seen > 100


@pytest.mark.parametrize("block_size", [1, 16, 100])
def test_paged_reservations_are_whole_blocks(block_size):
    drawn = requests.trace(60, 0, prompt=(20, 1.0), output=(30, 0.8), longest=128)
    memory, seen = 600 // block_size * block_size, 0
    for regions, need in paged_reservations(drawn, memory, block_size):
        assert need == block_size and {size for _, size, _, _ in regions} == {block_size}
        starts = [start for start, _, _, _ in regions]
        assert len(set(starts)) == len(starts) and max(starts) + block_size <= memory
        assert all(start % block_size == 0 for start in starts)
        assert all(1 <= now <= final <= block_size for _, _, now, final in regions)
        assert fragmentation(regions, memory, need)["external"] == 0
        seen += 1
    assert seen > 20


def test_a_trace_is_what_it_says():
    drawn = requests.trace(20_000, 0, rate=0.5, longest=100_000)
    assert drawn == requests.trace(
        20_000, torch.Generator().manual_seed(0), rate=0.5, longest=10**5
    )
    prompts = torch.tensor([request.prompt for request in drawn]).double()
    outputs = torch.tensor([request.output for request in drawn]).double()
    assert prompts.mean().item() == pytest.approx(160, rel=0.05)
    assert outputs.mean().item() == pytest.approx(340, rel=0.05)
    assert prompts.log().std().item() == pytest.approx(1.0, rel=0.05)
    assert outputs.log().std().item() == pytest.approx(0.8, rel=0.05)
    counts = torch.bincount(torch.tensor([request.arrival for request in drawn])).double()
    assert counts.mean().item() == pytest.approx(0.5, rel=0.05)
    assert counts.var().item() == pytest.approx(0.5, rel=0.08)  # as the mean: Poisson
    cut = requests.trace(2_000, 1, longest=300)
    assert max(request.prompt + request.output for request in cut) == 300
    assert min(min(request[1:]) for request in cut) >= 1


@pytest.mark.parametrize(
    "wrong", [{"count": 0}, {"longest": 1}, {"rate": 0.0}, {"prompt": (0, 1.0)}], ids=str
)
def test_a_trace_refuses_what_makes_no_sense(wrong):
    with pytest.raises(ValueError, match="a trace needs"):
        requests.trace(**{"count": 3, "generator": 0, **wrong})


def test_the_checks_model_reads_positions():
    weights = [
        randn(*shape) for shape in [(7, 6), (20, 6), (2, 6, 4, 3), (2, 6, 2, 3), (2, 6, 2, 3)]
    ]
    model = SmallServed((*weights, randn(2, 4, 3, 6), [1]))
    assert model.shape == (2, 2, 3) and model.context == 20
    tokens, all_rows = torch.tensor([1, 1, 1]), torch.arange(3)
    logits = model(tokens, torch.tensor([0, 5, 9]), attend_to_all, all_rows)
    assert logits.shape == (3, 7) and not torch.allclose(logits[0], logits[1])
    with pytest.raises(RuntimeError, match="called too often"):
        model(tokens, torch.tensor([0, 5, 9]), attend_to_all, all_rows)


def test_contiguous_attention_is_torchs(rng):
    B, T, G, D_h, N = 3, 2, 2, 5, 9
    Q, K, V = randn(B, T, 2 * G, D_h), randn(B, N, G, D_h), randn(B, N, G, D_h)
    Y = contiguous_attention(Q, K, V, torch.tensor([N, 4, 2]))
    expected = functional.scaled_dot_product_attention(
        Q[1:2].transpose(1, 2), K[1:2, :4].transpose(1, 2), V[1:2, :4].transpose(1, 2),
        torch.ones(T, 4, dtype=torch.bool).tril(2), enable_gqa=True,
    )  # fmt: skip
    torch.testing.assert_close(Y[1:2], expected.transpose(1, 2), **CLOSE)


def test_gradients_of_a_merge_are_finite_where_sets_are_empty():
    s_a = torch.tensor([-math.inf, -math.inf, 1.0, 0.5], dtype=torch.float64, requires_grad=True)
    s_b = torch.tensor([-math.inf, 2.0, -math.inf, 3.0], dtype=torch.float64, requires_grad=True)
    Y_a, Y_b = torch.randn(2, 4, 3, dtype=torch.float64)
    Y, s = online_softmax_merge(Y_a, s_a, Y_b, s_b)
    (Y.sum() + s[1:].sum()).backward()
    assert s_a.grad.isfinite().all() and s_b.grad.isfinite().all()
    assert s_a.grad[:2].tolist() == [0, 0] and s_b.grad[[0, 2]].tolist() == [0, 0]
    torch.testing.assert_close(s, torch.logaddexp(s_a, s_b))
