"""Checks of seq2seq. Oracles: torch's GRU sentence by sentence, loops, exhaustive search."""

import itertools
import math

import torch
from torch import Tensor, nn

from course_pkg.checking.black_box import demand_exposed
from course_pkg.checking.case import Case
from course_pkg.checking.models import SmallDecoder
from course_pkg.checking.registry import check
from course_pkg.data.translation import BOS, EOS, PAD
from course_pkg.seq2seq import (
    AttentionDecoder,
    Decoder,
    Encoder,
    additive_scores,
    additive_scores_fault,
    attend,
    beam_search,
    bleu,
    greedy_decode,
    teacher_forcing_loss,
)


def masked(case: Case, B: int, N: int) -> tuple[Tensor, Tensor]:
    """Draw lengths of sentences and make their mask."""
    lengths = case.lengths(B, N)
    return lengths, torch.arange(N) < lengths[:, None]


def annotations(case: Case, B: int, N: int, C: int) -> tuple[Tensor, Tensor]:
    """Draw an encoder's states, zero at padding, and their mask."""
    _, mask = masked(case, B, N)
    return case.randn(B, N, C) * mask[:, :, None], mask


def weights(case: Case, module: nn.Module) -> dict[str, Tensor]:
    """Draw a state dict for a module: numbers of a size at which nothing saturates."""
    return {
        name: case.randn(*value.shape) / value.shape[-1] ** 0.5
        for name, value in module.state_dict().items()
    }


def load(case: Case, student, sizes: tuple[int, ...], state: dict[str, Tensor]):
    """Make a student's module, float64, with given weights."""
    module = student(*sizes).double()
    names = sorted(module.state_dict())
    wanted = sorted(state)
    case.that(names == wanted, f"Parameters should be {wanted}, yours are {names}.")
    module.load_state_dict(state)
    return module


def encoder_pair(case: Case, student, V: int, E: int, H: int) -> tuple:
    """Make a student's Encoder, and torch's embedding and GRU with the same random weights."""
    parts = {"embedding": nn.Embedding(V, E), "gru": nn.GRU(E, H, bidirectional=True)}
    torchs = nn.ModuleDict(parts).double()
    state = weights(case, torchs)
    torchs.load_state_dict(state)
    return load(case, student, (V, E, H), state), torchs


def one_by_one(torchs: nn.ModuleDict, X: Tensor, lengths: Tensor) -> Tensor:
    """Encode each sentence on its own, without any padding, and put zeros behind it."""
    B, N = X.shape
    expected = torch.zeros(B, N, 2 * torchs["gru"].hidden_size, dtype=torch.float64)
    for row, length in enumerate(lengths.tolist()):
        expected[row, :length] = torchs["gru"](torchs["embedding"](X[row, :length]))[0]
    return expected


@check(Encoder, weight=3, see="The encoder", single="B")
def values(encoder, case):
    """agrees with torch's GRU when each sentence is read on its own, without padding"""
    B, N, V, E, H = case.sizes(5, low=3)
    ours, torchs = encoder_pair(case, encoder, V, E, H)
    lengths, mask = masked(case, B, N)
    X = case.integers(4, V + 4, B, N) % V * mask
    h, _ = case.unpack(ours(X, lengths), "h", "mask")
    case.equal(h, one_by_one(torchs, X, lengths), "h")


@check(Encoder, see="The encoder", single="B")
def mask(encoder, case):
    """returns a mask that is True where a word is"""
    B, N, V, E, H = case.sizes(5, low=3)
    ours, _ = encoder_pair(case, encoder, V, E, H)
    lengths, expected = masked(case, B, N)
    _, given = case.unpack(ours(case.integers(0, V, B, N), lengths), "h", "mask")
    case.equal(given, expected, "mask")


@check(Encoder, see="The encoder")
def without_padding(encoder, case):
    """agrees with torch's bidirectional GRU when all sentences have the same length"""
    B, N, V, E, H = case.sizes(5, low=3)
    ours, torchs = encoder_pair(case, encoder, V, E, H)
    X = case.integers(0, V, B, N)
    h, _ = case.unpack(ours(X, torch.full((B,), N)), "h", "mask")
    expected, _ = torchs["gru"](torchs["embedding"](X).transpose(0, 1))
    case.equal(h, expected.transpose(0, 1), "h")


@check(Encoder, see="The encoder")
def gradients(encoder, case):
    """passes the right gradients to the embedding"""
    B, N, V, E, H = case.sizes(5, low=3)
    ours, torchs = encoder_pair(case, encoder, V, E, H)
    lengths, _ = masked(case, B, N)
    X, seen = case.integers(0, V, B, N), case.randn(B, N, 2 * H)
    one_by_one(torchs, X, lengths).backward(seen)
    h, _ = case.unpack(ours(X, lengths), "h", "mask")
    case.trains(h, "h")
    h.backward(seen)
    given = dict(ours.named_parameters())["embedding.weight"]
    case.gradient(given, torchs["embedding"].weight.grad, "the embedding")
    case.learns(ours)


@check(Encoder, see="The encoder")
def padding(encoder, case):
    """gives the same whatever the padding holds"""
    B, N, V, E, H = case.sizes(5, low=3)
    ours, torchs = encoder_pair(case, encoder, V, E, H)
    lengths, _ = masked(case, B, N)
    X = case.integers(0, V, B, N)
    h, _ = case.unpack(ours(X, lengths), "h", "mask")
    case.equal(h, one_by_one(torchs, X, lengths), "h")


@check(Encoder, see="The encoder")
def wider_than_needed(encoder, case):
    """keeps all N columns when no sentence fills them"""
    B, N, V, E, H = case.sizes(5, low=3)
    ours, torchs = encoder_pair(case, encoder, V, E, H)
    lengths, _ = masked(case, B, N)
    X = case.integers(0, V, B, N + 3)
    h, mask = case.unpack(ours(X, lengths), "h", "mask")
    case.equal(h, one_by_one(torchs, X, lengths), "h")
    case.equal(mask, torch.arange(N + 3) < lengths[:, None], "mask")


class Given(nn.Module):
    """The parameters of both decoders, by their names."""

    def __init__(self, V: int, E: int, C: int, S: int, A: int | None = None):
        super().__init__()
        self.embedding = nn.Embedding(V, E)
        self.first = nn.Linear(C if A is None else C // 2, S)
        self.gru = nn.GRUCell(E + C, S)
        self.output = nn.Linear(S + C, V)
        if A is not None:
            self.W = nn.Parameter(torch.zeros(A, S))
            self.U = nn.Parameter(torch.zeros(A, C))
            self.v = nn.Parameter(torch.zeros(A))

    def write(self, y: Tensor, s: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        """Compute logits and s_t when the context is known."""
        s = self.gru(torch.cat([self.embedding(y), c], dim=1), s)
        return torch.cat([s, c], dim=1) @ self.output.weight.T + self.output.bias, s


def decoder_pair(case: Case, student, *sizes: int) -> tuple:
    """Make a student's decoder, and our parts with the same random weights."""
    given = Given(*sizes).double()
    given.load_state_dict(weights(case, given))
    return load(case, student, sizes, dict(given.state_dict())), given


def even_sizes(case: Case, count: int) -> list[int]:
    """Draw sizes for a decoder: V, E, C (even), S, …, all different."""
    sizes = case.sizes(count, low=3)
    sizes[2] = 2 * (max(sizes) // 2 + 1)
    return sizes


def ends(h: Tensor, mask: Tensor) -> Tensor:
    """The forward state of each sentence's last word and the backward state of its first."""
    half = h.shape[2] // 2
    rows = zip(h, mask.sum(dim=1).tolist(), strict=True)
    return torch.stack([torch.cat([row[n - 1, :half], row[0, half:]]) for row, n in rows])


@check(Decoder, weight=2, see="A decoder with one context", single={"B": 4})
def start(decoder, case):
    """takes c from the two ends of each sentence, and s_0 = tanh(W_0 c + b_0)"""
    V, E, C, S, B, N = even_sizes(case, 6)
    ours, given = decoder_pair(case, decoder, V, E, C, S)
    h, mask = annotations(case, B, N, C)
    s, c = case.unpack(ours.start(h, mask), "s_0", "c")
    case.equal(c, ends(h, mask), "c")
    case.equal(s, torch.tanh(given.first(ends(h, mask))), "s_0")


@check(Decoder, weight=3, see="A decoder with one context", single={"B": 4})
def step(decoder, case):
    """agrees with torch.nn.GRUCell and a linear layer"""
    V, E, C, S, B = even_sizes(case, 5)
    ours, given = decoder_pair(case, decoder, V, E, C, S)
    y, s, c = case.integers(0, V, B), case.randn(B, S), case.randn(B, C)
    expected, expected_s = given.write(y, s, c)
    logits, s, weights = case.unpack(ours.step(y, s, c), "logits", "s_t", "None")
    case.equal(s, expected_s, "s_t")
    case.equal(logits, expected, "logits")
    case.that(weights is None, "weights should be None: this decoder has no attention.")


@check(Decoder, see="A decoder with one context")
def gradients(decoder, case):
    """passes the gradient of two steps back to h"""
    V, E, C, S, B, N = even_sizes(case, 6)
    ours, given = decoder_pair(case, decoder, V, E, C, S)
    h, mask = annotations(case, B, N, C)
    y, seen = case.integers(0, V, 2, B), case.randn(B, V)
    h.requires_grad_()
    c = ends(h, mask)
    _, s = given.write(y[0], torch.tanh(given.first(c)), c)
    (expected,) = torch.autograd.grad(given.write(y[1], s, c)[0], h, seen)
    s, memory = case.unpack(ours.start(h, mask), "s_0", "c")
    _, s, _ = case.unpack(ours.step(y[0], s, memory), "logits", "s_t", "None")
    logits, _, _ = case.unpack(ours.step(y[1], s, memory), "logits", "s_t", "None")
    case.trains(logits, "logits")
    logits.backward(seen)
    case.gradient(h, expected, "h")
    case.learns(ours)


def small_decoder(case: Case, V: int, C: int, S: int, end: float = 0.0) -> SmallDecoder:
    """Draw a decoder that never says PAD or BOS; the higher `end`, the sooner it says EOS."""
    b = case.randn(V)
    b[EOS] += end
    b[PAD] = b[BOS] = -50
    P, R = case.randn(C, S) / C**0.5, 2 * case.randn(S, S) / S**0.5
    return SmallDecoder([P, R, case.randn(V, S), 2 * case.randn(S, V) / S**0.5, b])


def log_probability(decoder: SmallDecoder, h: Tensor, mask: Tensor, words: list[int]) -> Tensor:
    """Compute log p of each of the words that follow BOS, for one sentence."""
    s, memory = decoder.start(h[None], mask[None])
    found, before = [], BOS
    for word in words:
        logits, s, _ = decoder.step(torch.tensor([before]), s, memory)
        found.append(logits[0, word] - torch.logsumexp(logits[0], dim=0))
        before = word
    return torch.stack(found)


def translations(case: Case, B: int, M: int, V: int) -> tuple[Tensor, list[list[int]]]:
    """Draw translations of different lengths, as Y and as lists of words without BOS."""
    lengths = 1 + case.lengths(B, M - 2)  # EOS included
    rows = [[*case.integers(4, V, n - 1).tolist(), EOS] for n in lengths.tolist()]
    padded = [[BOS, *row, *[PAD] * (M - 1 - len(row))] for row in rows]
    return torch.tensor(padded), rows


def forced(case: Case) -> tuple:
    """Draw a decoder, an encoder's result and translations for teacher forcing."""
    B, N, M, C, S = case.sizes(5, low=4)
    decoder = small_decoder(case, 9, C, S)
    return decoder, *annotations(case, B, N, C), *translations(case, B, M, 9)


@check(teacher_forcing_loss, weight=3, see="Teacher forcing")
def values(loss, case):
    """is the mean of -log p over all words of all translations, EOS included"""
    decoder, h, mask, Y, rows = forced(case)
    log_p = [log_probability(decoder, h[n], mask[n], row) for n, row in enumerate(rows)]
    case.equal(loss(decoder, h, mask, Y), -torch.cat(log_p).mean(), "loss")


@check(teacher_forcing_loss, see="Teacher forcing")
def padding(loss, case):
    """gives the same when every translation is padded further"""
    decoder, h, mask, Y, rows = forced(case)
    log_p = [log_probability(decoder, h[n], mask[n], row) for n, row in enumerate(rows)]
    longer = torch.cat([Y, torch.full((len(Y), 7), PAD)], dim=1)
    case.equal(loss(decoder, h, mask, longer), -torch.cat(log_p).mean(), "loss")


@check(teacher_forcing_loss, see="Teacher forcing")
def gradients(loss, case):
    """passes the right gradient back to h"""
    decoder, h, mask, Y, rows = forced(case)
    h.requires_grad_()
    log_p = [log_probability(decoder, h[n], mask[n], row) for n, row in enumerate(rows)]
    (expected,) = torch.autograd.grad(-torch.cat(log_p).mean(), h)
    given = loss(decoder, h, mask, Y)
    case.shape(given, (), "loss")
    case.trains(given, "loss")
    given.backward()
    case.gradient(h, expected, "h")


def shouting(decoder: SmallDecoder) -> SmallDecoder:
    """Make a decoder's logits a thousand times as large."""
    return SmallDecoder([*decoder[:3], 1e3 * decoder[3], 1e3 * decoder[4]])


@check(teacher_forcing_loss, see="Teacher forcing")
def surprised(loss, case):
    """is finite when a true word's probability is too small for a number"""
    decoder, h, mask, Y, rows = forced(case)
    decoder = shouting(decoder)
    log_p = [log_probability(decoder, h[n], mask[n], row) for n, row in enumerate(rows)]
    case.equal(loss(decoder, h, mask, Y), -torch.cat(log_p).mean(), "loss")


def next_log_p(decoder: SmallDecoder, h: Tensor, mask: Tensor, words: list[int]) -> Tensor:
    """Compute log p of every word that may follow some words, starting anew each time."""
    s, memory = decoder.start(h[None], mask[None])
    for word in [BOS, *words]:
        logits, s, _ = decoder.step(torch.tensor([word]), s, memory)
    return torch.log_softmax(logits[0], dim=0)


def greedy_by_hand(decoder: SmallDecoder, h: Tensor, mask: Tensor, max_length: int) -> list[int]:
    """Translate one sentence, starting anew for each word."""
    words = []
    while len(words) < max_length and EOS not in words:
        words.append(int(next_log_p(decoder, h, mask, words).argmax()))
    return words


def padded(rows: list[list[int]]) -> Tensor:
    """Put lists of words into one tensor, with PAD behind the shorter ones."""
    width = max(map(len, rows))
    return torch.tensor([row + [PAD] * (width - len(row)) for row in rows])


def greedy_case(case: Case, end: float) -> tuple:
    """Draw a decoder and an encoder's result for a few sentences."""
    N, C, S = case.sizes(3, low=3)
    return small_decoder(case, 11, C, S, end), *annotations(case, 9, N, C)


@check(greedy_decode, weight=3, see="Greedy decoding")
def values(decode, case):
    """takes the most probable word at every step, and PAD after EOS"""
    rows: list[list[int]] = []
    while len({len(row) for row in rows}) < 3:  # some decoders end all sentences at once, or none
        decoder, h, mask = greedy_case(case, end=0.5)
        rows = [greedy_by_hand(decoder, *one, 12) for one in zip(h, mask, strict=True)]
    case.equal(decode(decoder, h, mask, 12), padded(rows), "words")


@check(greedy_decode, see="Greedy decoding")
def stops(decode, case):
    """takes no further step when every sentence has ended"""
    longest = 30
    while longest == 30:  # some decoders never say EOS
        decoder, h, mask = greedy_case(case, end=2.0)
        rows = [greedy_by_hand(decoder, *one, 30) for one in zip(h, mask, strict=True)]
        longest = max(map(len, rows))
    words = decode(SmallDecoder([*decoder, longest]), h, mask, 30)
    case.shape(words, (9, longest), "words")


@check(greedy_decode, see="Greedy decoding")
def goes_no_further(decode, case):
    """writes max_length words where no EOS comes"""
    decoder, h, mask = greedy_case(case, end=-50.0)
    rows = [greedy_by_hand(decoder, *one, 5) for one in zip(h, mask, strict=True)]
    case.equal(decode(decoder, h, mask, 5), padded(rows), "words")


@check(greedy_decode, see="Greedy decoding")
def one_sentence(decode, case):
    """translates a sentence on its own as in a batch"""
    decoder, h, mask = greedy_case(case, end=2.0)
    for b in range(3):
        words = greedy_by_hand(decoder, h[b], mask[b], 15)
        given = decode(decoder, h[b : b + 1], mask[b : b + 1], 15)
        case.equal(given, torch.tensor([words]), f"words of sentence {b}")


def sentences(case: Case, count: int, low: int) -> list[list[str]]:
    """Draw sentences of different words, at least `low` each."""
    lengths = case.integers(low, low + 9, count).tolist()
    return [[f"word{k}" for k in range(length)] for length in lengths]


def grams(rows: list[list[str]], n: int) -> int:
    """Count the n-grams of some sentences."""
    return sum(len(row) - n + 1 for row in rows)


@check(bleu, weight=2, see="Measuring a translation")
def values(score, case):
    """loses n of the n-grams for each word that is wrong, in the middle of a sentence"""
    references = sentences(case, 7, low=10)
    hypotheses = [[*row[:4], "wrong", *row[5:]] for row in references]
    lost = [1 - n * len(references) / grams(references, n) for n in range(1, 5)]
    case.equal(score(hypotheses, references), 100 * math.prod(lost) ** 0.25, "BLEU")


@check(bleu, see="Measuring a translation")
def brevity(score, case):
    """is 100 exp(1 - r/c) when all translations stop too early"""
    references = sentences(case, 7, low=8)
    hypotheses = [row[: len(row) - 1 - number % 3] for number, row in enumerate(references)]
    r, c = sum(map(len, references)), sum(map(len, hypotheses))
    case.equal(score(hypotheses, references), 100 * math.exp(1 - r / c), "BLEU")


@check(bleu, see="Measuring a translation")
def repeated(score, case):
    """counts nothing twice when every translation repeats its reference"""
    references = sentences(case, 7, low=6)
    hypotheses = [row + row for row in references]
    shares = [grams(references, n) / grams(hypotheses, n) for n in range(1, 5)]
    case.equal(score(hypotheses, references), 100 * math.prod(shares) ** 0.25, "BLEU")


@check(bleu, see="Measuring a translation")
def perfect(score, case):
    """is 100 when every translation equals its reference"""
    references = sentences(case, 7, low=4)
    case.equal(score(references, references), 100.0, "BLEU")


def bleu_by_hand(hypotheses: list[list[str]], references: list[list[str]]) -> float:
    """Count n-grams one after the other; each one found is crossed out in the reference."""
    product = 1.0
    for n in range(1, 5):
        found = total = 0
        for hypothesis, reference in zip(hypotheses, references, strict=True):
            left = [reference[i : i + n] for i in range(len(reference) - n + 1)]
            for i in range(len(hypothesis) - n + 1):
                total += 1
                if hypothesis[i : i + n] in left:
                    left.remove(hypothesis[i : i + n])
                    found += 1
        product *= found / total
    c, r = (sum(map(len, side)) for side in (hypotheses, references))
    return 100 * product**0.25 * (1.0 if c > r else math.exp(1 - r / c))


def corpus(case: Case, keep: float, low: int = 6, change: float = 0.15) -> tuple[list, list]:
    """Draw references from few words, and hypotheses: shortened, some words changed, swapped."""
    words = ["a", "b", "c", "A", "aa", "ab", "bc"]
    references, hypotheses = [], []
    for length in case.integers(low, low + 9, 12).tolist():
        reference = [words[k] for k in case.integers(0, 7, length).tolist()]
        other = [words[k] for k in case.integers(0, 7, length).tolist()]
        changed = (case.rand(length) < change).tolist()
        pairs = zip(reference, other, changed, strict=True)
        hypothesis = [new if is_new else old for old, new, is_new in pairs]
        references.append(reference)
        hypotheses.append(hypothesis[: max(4, round(keep * length))] + hypothesis[: int(keep > 1)])
    return hypotheses, references


@check(bleu, see="Measuring a translation")
def values_by_hand(score, case):
    """counts as you would by hand, crossing out what is found"""
    hypotheses, references = corpus(case, keep=1.1)
    case.equal(score(hypotheses, references), bleu_by_hand(hypotheses, references), "BLEU")


@check(bleu, see="Measuring a translation")
def nothing_in_common(score, case):
    """is 0 when no four words in a row are right, and when nothing is said"""
    references = [list("abcdefg")]
    case.equal(score([list("abcxdef")], references), 0.0, "BLEU")
    case.equal(score([[]], references), 0.0, "BLEU of nothing")


@check(bleu, see="Measuring a translation")
def refuses(score, case):
    """raises ValueError when a reference or a translation is missing"""
    hypotheses, references = corpus(case, keep=1.0)
    case.raises(ValueError, lambda: score(hypotheses, references[1:]), "a reference is missing")
    case.raises(ValueError, lambda: score(hypotheses[1:], references), "a translation is missing")
    case.raises(ValueError, lambda: score([], references), "there are references alone")


@check(additive_scores, weight=3, see="Scores")
def values(scores, case):
    """agrees with a double loop over sentences and source words"""
    B, N, S, A = case.sizes(4, low=3)
    s, keys, W, v = case.randn(B, S), case.randn(B, N, A), case.randn(A, S), case.randn(A)
    rows = [[v.dot(torch.tanh(W.mv(s[b]) + keys[b, i])) for i in range(N)] for b in range(B)]
    expected = torch.stack([torch.stack(row) for row in rows])
    case.equal(scores(s, keys, W, v), expected, "e")


@check(additive_scores, see="Scores")
def bounded(scores, case):
    """gives Σ|v| to a source word that agrees in every feature, however large it is"""
    B, N, S, A = case.sizes(4, low=3)
    v = case.randn(A)
    keys = 1e3 * v.sign().expand(B, N, A)
    e = scores(case.randn(B, S), keys, case.randn(A, S), v)
    case.equal(e, v.abs().sum().expand(B, N), "e")


@check(additive_scores, see="Scores")
def gradients(scores, case):
    """passes the right gradients back to s, keys, W and v"""
    B, N, S, A = case.sizes(4, low=3)
    shapes = {"s": (B, S), "keys": (B, N, A), "W": (A, S), "v": (A,)}
    inputs = [case.randn(*shape).requires_grad_() for shape in shapes.values()]
    s, keys, W, v = inputs
    fits = torch.tanh(torch.einsum("as,bs->ba", W, s).unsqueeze(1) + keys)
    seen = case.randn(B, N)
    expected = torch.autograd.grad(torch.einsum("bna,a->bn", fits, v), inputs, seen)
    e = scores(*inputs)
    case.shape(e, (B, N), "e")
    case.trains(e, "e")
    e.backward(seen)
    for name, tensor, gradient in zip(shapes, inputs, expected, strict=True):
        case.gradient(tensor, gradient, name)


@check(additive_scores, see="Scores")
def one_sentence(scores, case):
    """agrees with a loop for one sentence of one word"""
    S, A = case.sizes(2)
    s, keys, W, v = case.randn(1, S), case.randn(1, 1, A), case.randn(A, S), case.randn(A)
    expected = sum(v[k] * math.tanh(W[k].dot(s[0]) + keys[0, 0, k]) for k in range(A))
    case.equal(scores(s, keys, W, v), expected.reshape(1, 1), "e")


@check(attend, weight=2, see="From scores to a context", single="B")
def values(attend, case):
    """agrees with a softmax over the words of each sentence on its own"""
    B, N, C = case.sizes(3, low=4)
    e, (_, mask) = case.randn(B, N), masked(case, B, N)
    h = case.randn(B, N, C)
    expected_a, expected_c = torch.zeros(B, N).double(), torch.zeros(B, C).double()
    for b in range(B):
        n = int(mask[b].sum())
        expected_a[b, :n] = torch.softmax(e[b, :n], dim=0)
        expected_c[b] = expected_a[b, :n] @ h[b, :n]
    c, a = case.unpack(attend(e, h, mask), "c", "a")
    case.equal(a, expected_a, "a")
    case.equal(c, expected_c, "c")


@check(attend, see="From scores to a context")
def padding(attend, case):
    """gives padding a weight of exactly zero, whatever its score"""
    B, N, C = case.sizes(3, low=4)
    _, mask = masked(case, B, N)
    e = torch.where(mask, case.randn(B, N), 1e4)
    _, a = case.unpack(attend(e, case.randn(B, N, C), mask), "c", "a")
    case.shape(a, (B, N), "a")
    case.equal(a.masked_fill(mask, 0), torch.zeros(B, N), "a of padding")


@check(attend, see="From scores to a context")
def sums_to_one(attend, case):
    """has weights that sum to one over the source words, at large scores too"""
    B, N, C = case.sizes(3, low=4)
    _, mask = masked(case, B, N)
    _, a = case.unpack(attend(800 + case.randn(B, N), case.randn(B, N, C), mask), "c", "a")
    case.shape(a, (B, N), "a")
    case.equal(a.sum(dim=1), torch.ones(B), "sum of a")


@check(attend, see="From scores to a context")
def large_scores(attend, case):
    """stays finite for very large scores, and gives padding nothing, however low the others"""
    B, N, C = case.sizes(3, low=4)
    _, mask = masked(case, B, N)
    e, h = 1e11 * case.randn(B, N), case.randn(B, N, C)
    best = torch.where(mask, e, -math.inf).argmax(dim=1)
    c, a = case.unpack(attend(e, h, mask), "c", "a")
    case.equal(a, torch.eye(N)[best], "a")
    case.equal(c, h[torch.arange(B), best], "c")


@check(attend, see="From scores to a context")
def gradients(attend, case):
    """passes the right gradients back to e and h"""
    B, N, C = case.sizes(3, low=4)
    e, h, seen = case.randn(B, N), case.randn(B, N, C), case.randn(B, C)
    e, h = e.requires_grad_(), h.requires_grad_()
    p = e.exp()
    context = (p[:, :, None] * h).sum(dim=1) / p.sum(dim=1, keepdim=True)
    expected = torch.autograd.grad(context, [e, h], seen)
    c, _ = case.unpack(attend(e, h, torch.ones(B, N) > 0), "c", "a")
    case.shape(c, (B, C), "c")
    case.trains(c, "c")
    c.backward(seen)
    case.gradient(e, expected[0], "e")
    case.gradient(h, expected[1], "h")


@check(AttentionDecoder, see="The decoder with attention")
def start(decoder, case):
    """takes s_0 from the backward state of the first word"""
    V, E, C, S, A, B, N = even_sizes(case, 7)
    ours, given = decoder_pair(case, decoder, V, E, C, S, A)
    h, mask = annotations(case, B, N, C)
    s, _ = case.unpack(ours.start(h, mask), "s_0", "memory")
    expected = h[:, 0, C // 2 :] @ given.first.weight.T + given.first.bias
    case.equal(s, expected.tanh(), "s_0")


def attended(given: Given, s: Tensor, h: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Compute contexts and weights sentence by sentence, word by word."""
    c, a = torch.zeros(len(h), h.shape[2]).double(), torch.zeros(mask.shape).double()
    for b in range(len(h)):
        n = int(mask[b].sum())
        e = [given.v.dot(torch.tanh(given.W.mv(s[b]) + given.U.mv(h[b, i]))) for i in range(n)]
        a[b, :n] = torch.softmax(torch.stack(e), dim=0)
        c[b] = a[b, :n] @ h[b, :n]
    return c, a


def attention_case(case: Case, decoder) -> tuple:
    """Make a student's decoder, ours, and y, s, h and mask."""
    V, E, C, S, A, B, N = even_sizes(case, 7)
    pair = decoder_pair(case, decoder, V, E, C, S, A)
    y, s = case.integers(0, V, B), case.randn(B, S)
    return *pair, y, s, *annotations(case, B, N, C)


@check(AttentionDecoder, weight=3, see="The decoder with attention", single={"B": 5})
def step(decoder, case):
    """agrees with loops over sentences and words, torch.nn.GRUCell and a linear layer"""
    ours, given, y, s, h, mask = attention_case(case, decoder)
    _, memory = case.unpack(ours.start(h, mask), "s_0", "memory")
    c, expected_a = attended(given, s, h, mask)
    expected, expected_s = given.write(y, s, c)
    logits, s, a = case.unpack(ours.step(y, s, memory), "logits", "s_t", "a_t")
    case.equal(a, expected_a, "a_t")
    case.equal(s, expected_s, "s_t")
    case.equal(logits, expected, "logits")
    case.trains(s, "s_t")


@check(AttentionDecoder, weight=2, see="The decoder with attention")
def looks_again(decoder, case):
    """computes new weights at every step, from the state before it"""
    ours, given, y, _, h, mask = attention_case(case, decoder)
    s, memory = case.unpack(ours.start(h, mask), "s_0", "memory")
    expected_s = torch.tanh(given.first(h[:, 0, h.shape[2] // 2 :]))
    for t in range(1, 4):
        c, expected_a = attended(given, expected_s, h, mask)
        expected, expected_s = given.write(y, expected_s, c)
        logits, s, a = case.unpack(ours.step(y, s, memory), "logits", "s_t", "a_t")
        case.equal(a, expected_a, f"a_{t}")
        case.equal(logits, expected, f"logits of step {t}")
        y = expected.argmax(dim=1)


@check(AttentionDecoder, see="The decoder with attention")
def two_batches(decoder, case):
    """looks at the sentences whose memory it is given, though others were started later"""
    ours, given, y, s, h, mask = attention_case(case, decoder)
    batches = {"the batch started first": h, "the batch started last": case.randn(*h.shape)}
    starts = [case.unpack(ours.start(each, mask), "s_0", "memory") for each in batches.values()]
    for (name, each), (first, memory) in zip(batches.items(), starts, strict=True):
        case.equal(first, given.first(each[:, 0, h.shape[2] // 2 :]).tanh(), f"s_0 of {name}")
        c, expected_a = attended(given, s, each, mask)
        expected, _ = given.write(y, s, c)
        logits, _, a = case.unpack(ours.step(y, s, memory), "logits", "s_t", "a_t")
        case.equal(a, expected_a, f"a_t of {name}")
        case.equal(logits, expected, f"logits of {name}")


@check(AttentionDecoder, see="The decoder with attention")
def gradients(decoder, case):
    """passes the gradient of a step back to h, through scores, context and s_0"""
    ours, given, y, _, h, mask = attention_case(case, decoder)
    h.requires_grad_()
    first = torch.tanh(given.first(h[:, 0, h.shape[2] // 2 :]))
    e = torch.tanh((first @ given.W.T)[:, None] + h @ given.U.T) @ given.v
    p = e.exp() * mask
    a = p / p.sum(dim=1, keepdim=True)
    expected, _ = given.write(y, first, torch.einsum("bn,bnc->bc", a, h))
    seen = case.randn(*expected.shape)
    (gradient,) = torch.autograd.grad(expected, h, seen)
    s, memory = case.unpack(ours.start(h, mask), "s_0", "memory")
    logits, _, _ = case.unpack(ours.step(y, s, memory), "logits", "s_t", "a_t")
    case.trains(logits, "logits")
    logits.backward(seen)
    case.gradient(h, gradient, "h")
    case.learns(ours)


@check(AttentionDecoder, see="The decoder with attention")
def padding(decoder, case):
    """gives the same whatever the padding holds"""
    ours, given, y, s, h, mask = attention_case(case, decoder)
    c, expected_a = attended(given, s, h, mask)
    expected, _ = given.write(y, s, c)
    _, memory = case.unpack(ours.start(h + 100 * ~mask[:, :, None], mask), "s_0", "memory")
    logits, _, a = case.unpack(ours.step(y, s, memory), "logits", "s_t", "a_t")
    case.equal(a, expected_a, "a_t")
    case.equal(logits, expected, "logits")


def hypotheses(case: Case, result: object) -> tuple[list[list[int]], Tensor]:
    """Split what a beam search returns into words and log-probabilities."""
    case.that(
        isinstance(result, list) and len(result) > 0,
        "hypotheses should be a list of pairs (words, log-probability), best first.",
    )
    words, log_p = zip(*(case.unpack(one, "words", "log p") for one in result), strict=True)
    return [[int(word) for word in one] for one in words], torch.tensor([float(p) for p in log_p])


def search_case(case: Case, V: int = 8, end: float = 0.5) -> tuple:
    """Draw a decoder and an encoder's result for one sentence."""
    N, C, S = case.sizes(3, low=3)
    decoder = small_decoder(case, V, C, S, end)
    return decoder, case.randn(1, N, C), torch.ones(1, N, dtype=torch.bool)


def ranked(found: list, alpha: float) -> list:
    """Sort hypotheses by log p / T^α, best first."""
    return sorted(found, key=lambda one: -one[1] / len(one[0]) ** alpha)


def all_hypotheses(decoder, h: Tensor, mask: Tensor, max_length: int, alpha: float) -> list:
    """Score everything that can be said without PAD and BOS; best first."""
    others = range(3, len(decoder[4]))
    found = []
    for length in range(max_length):
        found += [[*words, EOS] for words in itertools.product(others, repeat=length)]
    found += map(list, itertools.product(others, repeat=max_length))
    log_p = [float(log_probability(decoder, h[0], mask[0], words).sum()) for words in found]
    return ranked(list(zip(found, log_p, strict=True)), alpha)


def compare(case: Case, given: object, expected: list[tuple[list[int], float]]) -> None:
    """Compare the first hypotheses with those expected: their log-probabilities, then words."""
    words, log_p = hypotheses(case, given)
    count = len(expected)
    case.that(
        len(words) >= count,
        f"hypotheses should number at least {count}, yours number {len(words)}.",
        log_p,
    )
    said = [word for one in words[:count] for word in one]
    case.that(
        not {PAD, BOS} & set(said),
        "words of hypotheses should not include BOS or PAD.",
        padded(words[:count]),
    )
    wanted, expected_log_p = zip(*expected, strict=True)
    case.equal(log_p[:count], torch.tensor(expected_log_p), "log p of hypotheses")
    case.equal(padded(words[:count]), padded(list(wanted)), "words of hypotheses")


@check(beam_search, weight=3, see="Beam search")
def exhaustive(search, case):
    """finds the ten best of all sentences when nothing has to be left out"""
    decoder, h, mask = search_case(case, V=6)
    result = search(decoder, h, mask, 130, 4)
    compare(case, result, all_hypotheses(decoder, h, mask, 4, 1.0)[:10])


@check(beam_search, see="Beam search")
def width_one(search, case):
    """is greedy decoding when the width is one"""
    decoder, h, mask = search_case(case, end=-0.5)
    words = greedy_by_hand(decoder, h[0], mask[0], 9)
    log_p = float(log_probability(decoder, h[0], mask[0], words).sum())
    compare(case, search(decoder, h, mask, 1, 9), [(words, log_p)])


def search_by_hand(
    decoder, h, mask, width: int, max_length: int, alpha: float, power: float = 0.0
) -> list:
    """Search with lists, starting anew for every hypothesis; at each step go by log p / T^power."""
    kept = [([], 0.0)]
    for _ in range(max_length):
        candidates = [one for one in kept if EOS in one[0]]
        for words, log_p in kept:
            if EOS not in words:
                more = next_log_p(decoder, h[0], mask[0], words).tolist()
                candidates += [([*words, y], log_p + more[y]) for y in range(2, len(more))]
        kept = ranked(candidates, power)[:width]
    return ranked(kept, alpha)


def telling_case(case: Case) -> tuple:
    """Draw a search in which dividing by T at every step, or multiplying, would keep others."""
    kept: list[set] = [set()] * 3
    while any(one == other for one, other in itertools.combinations(kept, 2)):
        drawn = search_case(case, V=9)
        found = [search_by_hand(*drawn, 4, 7, 0.0, power) for power in (0.0, 1.0, -1.0)]
        kept = [{tuple(words) for words, _ in hypotheses} for hypotheses in found]
    return drawn


@check(beam_search, weight=2, see="Beam search")
def narrow_beams(search, case):
    """keeps the same hypotheses as a search with lists, for widths from two to four"""
    for width in (4, 3, 2):
        decoder, h, mask = telling_case(case) if width == 4 else search_case(case, V=9)
        expected = search_by_hand(decoder, h, mask, width, 7, 1.0)
        compare(case, search(decoder, h, mask, width, 7, 1.0), expected)


@check(beam_search, weight=2, see="Beam search")
def honest(search, case):
    """gives each hypothesis the log-probability that the decoder gives its words"""
    decoder, h, mask = search_case(case)
    words, log_p = hypotheses(case, search(decoder, h, mask, 5, 8))
    case.that(all(words), "hypotheses should have at least one word each.", log_p)
    known = all(2 <= word < 8 for one in words for word in one)
    case.that(known, "words of hypotheses should not include BOS or PAD.", padded(words))
    expected = [log_probability(decoder, h[0], mask[0], one).sum() for one in words]
    case.equal(log_p, torch.stack(expected).float(), "log p of hypotheses")


@check(beam_search, see="Short or probable")
def by_probability(search, case):
    """finds the most probable of all sentences when α = 0"""
    decoder, h, mask = search_case(case, V=6)
    result = search(decoder, h, mask, 130, 4, 0.0)
    compare(case, result, all_hypotheses(decoder, h, mask, 4, 0.0)[:10])


@check(beam_search, see="Short or probable")
def between(search, case):
    """divides by the length to the power α, even where α is neither 0 nor 1"""
    for alpha, other in ((0.6, 0.8), (0.6, 0.4), (0.3, 0.5), (0.3, 0.1), (1.5, 1.2), (1.5, 2.0)):
        expected = found = None
        while expected == found:  # some decoders give the same with the other power
            decoder, h, mask = search_case(case)
            expected = search_by_hand(decoder, h, mask, 8, 6, alpha)
            found = ranked(expected, other)
        compare(case, search(decoder, h, mask, 8, 6, alpha), expected)


@check(beam_search, see="Beam search")
def improbable(search, case):
    """ranks hypotheses by log p where p itself is too small for a number"""
    least = 0.0
    while least > -800:  # e^-800 is 0 for a computer
        decoder, h, mask = search_case(case, V=7)
        decoder = shouting(decoder)
        expected = search_by_hand(decoder, h, mask, 4, 4, 1.0)
        least = float(log_probability(decoder, h[0], mask[0], expected[1][0]).min())
    compare(case, search(decoder, h, mask, 4, 4), expected)


@check(beam_search, see="Beam search")
def no_more_than_there_are(search, case):
    """returns fewer hypotheses where there are fewer than the width"""
    decoder, h, mask = search_case(case, V=6)
    words, log_p = hypotheses(case, search(decoder, h, mask, 10, 1))
    case.that(
        len(words) <= 6, f"hypotheses should number 6 at most, yours number {len(words)}.", log_p
    )
    expected = next_log_p(decoder, h[0], mask[0], []).sort(descending=True).values
    case.equal(log_p[:4], expected[:4].float(), "log p of hypotheses")


@check(beam_search, see="Beam search")
def goes_no_further(search, case):
    """returns what it has after max_length words, ended or not"""
    decoder, h, mask = search_case(case, end=-40.0)
    expected = search_by_hand(decoder, h, mask, 3, 5, 1.0)
    compare(case, search(decoder, h, mask, 3, 5), expected)


@check(beam_search, see="Beam search")
def padded_sentence(search, case):
    """gives the same for a sentence with padding after it, and for a wide beam"""
    N, C, S = case.sizes(3, low=3)
    decoder = small_decoder(case, 14, C, S, 0.5)
    h, mask = case.randn(1, N + 2, C), torch.arange(N + 2)[None] < N
    expected = search_by_hand(decoder, h, mask, 12, 4, 1.0)
    words, _ = hypotheses(case, search(decoder, h, mask, 12, 4))
    case.equal(padded(words), padded([one for one, _ in expected]), "words of hypotheses")


def scored(s: Tensor, keys: Tensor, W: Tensor, v: Tensor) -> Tensor:
    """Score word by word, if the arguments have the shapes of additive_scores."""
    (B, S), (_, N, A) = s.shape, keys.shape
    if keys.shape[0] != B or W.shape != (A, S) or v.shape != (A,):
        raise ValueError("the shapes should be (B, S), (B, N, A), (A, S) and (A)")
    return torch.stack(
        [
            torch.stack([v.dot(torch.tanh(W.mv(s[b]) + keys[b, i])) for i in range(N)])
            for b in range(B)
        ]
    )


@check(additive_scores_fault, see="One that trains as well")
def exposed(answer, case):
    """gives arguments with which the black box returns what is wrong"""
    demand_exposed(case, answer, "additive_scores", scored)
