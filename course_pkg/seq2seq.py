"""Translation with an encoder and a decoder, with one fixed context and with Bahdanau's attention.

Shapes: B sentences, N source words, T target words; h_i has C features, s_t has S. A decoder is
whatever has `start` and `step`, as `Decoder` and `AttentionDecoder` have.
"""

import math
from collections import Counter

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

from course_pkg.data.translation import BOS, EOS, PAD


class Encoder(nn.Module):
    """Read a sentence in both directions; each word gets a vector that knows its surroundings.

    h_i = [→h_i; ←h_i]: the state of a GRU that has read words 1 … i, and that of a second GRU that
    has read words N … i      (Bahdanau et al. 2015, §3.2)

    Args:
        V: words of the source language.
        E: features of a word's embedding.
        H: hidden features of each direction; h_i has C = 2H.
    """

    def __init__(self, V: int, E: int, H: int):
        super().__init__()
        self.embedding = nn.Embedding(V, E)
        nn.init.normal_(self.embedding.weight, std=0.3)
        self.gru = nn.GRU(E, H, batch_first=True, bidirectional=True)

    def forward(
        self, X: Int[Tensor, "B N"], lengths: Int[Tensor, "B"]
    ) -> tuple[Float[Tensor, "B N 2*H"], Bool[Tensor, "B N"]]:
        """Encode a batch of sentences.

        Args:
            X: the words, as numbers; what comes after a sentence's end is padding.
            lengths: how many words each sentence has, from 1 to N.
        Returns:
            h, with zeros where the padding is, and a mask that is True where a word is.
        """
        ### BEGIN SOLUTION
        sentences = nn.utils.rnn.pack_padded_sequence(
            self.embedding(X), lengths.cpu(), batch_first=True, enforce_sorted=False
        )
        h, _ = self.gru(sentences)
        N = X.shape[1]
        h, _ = nn.utils.rnn.pad_packed_sequence(h, batch_first=True, total_length=N)
        return h, torch.arange(N).to(lengths) < lengths[:, None]
        ### END SOLUTION


class Decoder(nn.Module):
    """Write a translation word by word, from one vector that stands for the whole source sentence.

    c = [→h_N; ←h_1],   s_0 = tanh(W_0 c + b_0)
    s_t = GRU([y_{t-1}; c], s_{t-1}),   logits of y_t = W_y [s_t; c] + b_y

    Every step sees c again, and not only s_0 (after Cho et al. 2014).

    Args:
        V: words of the target language.
        E: features of a word's embedding.
        C: features of h_i, the first half from the forward direction.
        S: features of the state s_t.
    """

    def __init__(self, V: int, E: int, C: int, S: int):
        super().__init__()
        self.embedding = nn.Embedding(V, E)
        nn.init.normal_(self.embedding.weight, std=0.3)
        self.first = nn.Linear(C, S)  # W_0, b_0
        self.gru = nn.GRUCell(E + C, S)
        self.output = nn.Linear(S + C, V)  # W_y, b_y

    def start(
        self, h: Float[Tensor, "B N C"], mask: Bool[Tensor, "B N"]
    ) -> tuple[Float[Tensor, "B S"], Float[Tensor, "B C"]]:
        """Prepare to translate.

        Args:
            h: the encoder's states.
            mask: True where a source word is, False where padding is.
        Returns:
            s_0, and what every step needs to know of the source: c.
        """
        ### BEGIN SOLUTION
        B, _, C = h.shape
        last = mask.sum(dim=1) - 1  # (B)
        c = torch.cat([h[torch.arange(B), last, : C // 2], h[:, 0, C // 2 :]], dim=1)
        return torch.tanh(self.first(c)), c
        ### END SOLUTION

    def step(
        self, y: Int[Tensor, "B"], s: Float[Tensor, "B S"], memory: Float[Tensor, "B C"]
    ) -> tuple[Float[Tensor, "B V"], Float[Tensor, "B S"], None]:
        """Take one step: which word comes next?

        Args:
            y: the words y_{t-1}; BOS in the first step.
            s: the states s_{t-1}.
            memory: what `start` returned, c.
        Returns:
            The logits of y_t, the states s_t, and None, where attention will have its weights.
        """
        ### BEGIN SOLUTION
        s = self.gru(torch.cat([self.embedding(y), memory], dim=1), s)
        return self.output(torch.cat([s, memory], dim=1)), s, None
        ### END SOLUTION


def teacher_forcing_loss(
    decoder: nn.Module,
    h: Float[Tensor, "B N C"],
    mask: Bool[Tensor, "B N"],
    Y: Int[Tensor, "B M"],
) -> Float[Tensor, ""]:
    """Compute the mean of -log p(y_t | y_0 … y_{t-1}, source) over all words of the translations.

    Whatever the model would have said, the next step is given the true word.

    Args:
        decoder: has `start` and `step`.
        h, mask: what the encoder returned.
        Y: the translations: BOS, words, EOS, then PAD, which does not count.
    Returns:
        The loss, in nats per word; EOS is a word to predict, BOS is not.
    """
    s, memory = decoder.start(h, mask)
    logits = []
    for t in range(Y.shape[1] - 1):
        step_logits, s, _ = decoder.step(Y[:, t], s, memory)
        logits.append(step_logits)
    flat = torch.stack(logits, dim=1).flatten(0, 1)  # (B·(M-1), V)
    return functional.cross_entropy(flat, Y[:, 1:].flatten(), ignore_index=PAD)


def greedy_decode(
    decoder: nn.Module,
    h: Float[Tensor, "B N C"],
    mask: Bool[Tensor, "B N"],
    max_length: int,
) -> Int[Tensor, "B T"]:
    """Translate by taking the most probable word at every step and giving it to the next step.

    Args:
        decoder: has `start` and `step`.
        h, mask: what the encoder returned.
        max_length: how many words to write at most, EOS included.
    Returns:
        The words without BOS; after a sentence's EOS comes PAD. T is the length of the longest
        translation: no step is taken when all sentences have ended.
    """
    s, memory = decoder.start(h, mask)
    y = mask.new_full((len(h),), BOS, dtype=torch.long)
    ended = mask.new_zeros(len(h))
    words = []
    while len(words) < max_length and not ended.all():
        logits, s, _ = decoder.step(y, s, memory)
        y = torch.where(ended, PAD, logits.argmax(dim=1))
        ended = ended | (y == EOS)
        words.append(y)
    return torch.stack(words, dim=1)


def bleu(hypotheses: list[list[str]], references: list[list[str]]) -> float:
    """Measure how much of the translations is in the references, in pieces of one to four words.

    BLEU = 100 · min(1, exp(1 - |references| / |hypotheses|)) · (p_1 p_2 p_3 p_4)^(1/4)
    (Papineni et al. 2002, §2.3, where these numbers of all their words are r and c)

    with p_n the share of the hypotheses' n-grams that are in their references; an n-gram counts at
    most as often as its reference has it. All counts are added up over the corpus before they are
    divided.

    Args:
        hypotheses: the translations, as lists of words.
        references: one right translation of each.
    Returns:
        A number from 0 to 100; 0 when some p_n is zero, or there is no n-gram of that length.
    Raises:
        ValueError: hypotheses and references differ in number.
    """
    logarithms = []
    for n in range(1, 5):
        matches = total = 0
        for hypothesis, reference in zip(hypotheses, references, strict=True):
            given, wanted = (
                Counter(tuple(words[i : i + n]) for i in range(len(words) - n + 1))
                for words in (hypothesis, reference)
            )
            matches += (given & wanted).total()
            total += given.total()
        if matches == 0:
            return 0.0
        logarithms.append(math.log(matches / total))
    c, r = sum(map(len, hypotheses)), sum(map(len, references))
    return 100 * math.exp(min(0, 1 - r / c) + sum(logarithms) / 4)


def additive_scores(
    s: Float[Tensor, "B S"],
    keys: Float[Tensor, "B N A"],
    W: Float[Tensor, "A S"],
    v: Float[Tensor, "A"],
) -> Float[Tensor, "B N"]:
    """Score how well each source word fits what the decoder is about to write.

    e_{t,i} = vᵀ tanh(W s_{t-1} + U h_i)      (Bahdanau et al. 2015, §A.1.2)

    Args:
        s: the decoder's states s_{t-1}.
        keys: U h_i, which do not depend on t: they are computed once for a sentence.
        W, v: the weights.
    Returns:
        e_t.
    """
    return torch.tanh((s @ W.T)[:, None] + keys) @ v


def attend(
    e: Float[Tensor, "B N"], h: Float[Tensor, "B N C"], mask: Bool[Tensor, "B N"]
) -> tuple[Float[Tensor, "B C"], Float[Tensor, "B N"]]:
    """Average the encoder's states, with more weight on those that have the higher scores.

    a_{t,i} = exp(e_{t,i}) / Σ_j exp(e_{t,j}),   c_t = Σ_i a_{t,i} h_i      (Bahdanau et al. 2015,
    §3.1), with both sums over words only, not over padding.

    Args:
        e: the scores.
        h: the encoder's states.
        mask: True where a word is; every sentence has at least one.
    Returns:
        The contexts c_t, and the weights a_t, which are zero where padding is, whatever the size
        of the scores.
    """
    a = torch.softmax(e.masked_fill(~mask, -math.inf), dim=1)
    return torch.einsum("bn,bnc->bc", a, h), a


class AttentionDecoder(nn.Module):
    """Write a translation word by word, and look at the source sentence anew before each word.

    s_0 = tanh(W_0 ←h_1 + b_0)
    c_t from `additive_scores` of s_{t-1} and all h_i, and `attend`
    s_t = GRU([y_{t-1}; c_t], s_{t-1}),   logits of y_t = W_y [s_t; c_t] + b_y

    (Bahdanau et al. 2015, §A.2.2, with a linear output layer)

    Args:
        V: words of the target language.
        E: features of a word's embedding.
        C: features of h_i, the second half from the backward direction.
        S: features of the state s_t.
        A: features in which states and source words are compared.
    """

    def __init__(self, V: int, E: int, C: int, S: int, A: int):
        super().__init__()
        self.embedding = nn.Embedding(V, E)
        nn.init.normal_(self.embedding.weight, std=0.3)
        self.first = nn.Linear(C // 2, S)  # W_0, b_0
        self.W = nn.Parameter(torch.empty(A, S).uniform_(-1, 1) / math.sqrt(S))
        self.U = nn.Parameter(torch.empty(A, C).uniform_(-1, 1) / math.sqrt(C))
        self.v = nn.Parameter(torch.randn(A) / math.sqrt(A))
        self.gru = nn.GRUCell(E + C, S)
        self.output = nn.Linear(S + C, V)  # W_y, b_y

    def start(self, h: Float[Tensor, "B N C"], mask: Bool[Tensor, "B N"]) -> tuple:
        """Prepare to translate.

        Args:
            h: the encoder's states.
            mask: True where a source word is, False where padding is.
        Returns:
            s_0, and a tuple of whatever every step needs to know of the source.
        """
        ### BEGIN SOLUTION
        s = torch.tanh(self.first(h[:, 0, h.shape[2] // 2 :]))
        return s, (h, h @ self.U.T, mask)
        ### END SOLUTION

    def step(
        self, y: Int[Tensor, "B"], s: Float[Tensor, "B S"], memory: tuple
    ) -> tuple[Float[Tensor, "B V"], Float[Tensor, "B S"], Float[Tensor, "B N"]]:
        """Take one step: where to look, and which word comes next?

        Args:
            y: the words y_{t-1}; BOS in the first step.
            s: the states s_{t-1}.
            memory: what `start` returned beside s_0.
        Returns:
            The logits of y_t, the states s_t and the weights a_t.
        """
        ### BEGIN SOLUTION
        h, keys, mask = memory
        c, a = attend(additive_scores(s, keys, self.W, self.v), h, mask)
        s = self.gru(torch.cat([self.embedding(y), c], dim=1), s)
        return self.output(torch.cat([s, c], dim=1)), s, a
        ### END SOLUTION


def beam_search(
    decoder: nn.Module,
    h: Float[Tensor, "1 N C"],
    mask: Bool[Tensor, "1 N"],
    width: int,
    max_length: int,
    alpha: float = 1.0,
) -> list[tuple[list[int], float]]:
    """Translate one sentence, keeping the `width` most probable beginnings at every step.

    The candidates of a step are the hypotheses that have ended, as they are, and every continuation
    of the others by one word. The most probable are kept (Sutskever et al. 2014, §3.2). In the end
    a hypothesis y_1 … y_T is judged by log p(y_1 … y_T | source) / T^α: with α = 0 that is its
    probability, and short ones win; with α = 1 it is the mean over its words (Wu et al. 2016, §7).

    Args:
        decoder: has `start` and `step`.
        h, mask: what the encoder returned for one sentence.
        width: how many hypotheses to keep.
        max_length: how many words a hypothesis may have, EOS included.
        alpha: the power of the length, at least 0.
    Returns:
        At most `width` hypotheses, best first: each one's words without BOS, with EOS if it has
        ended, and its log-probability, which is not divided by anything.
    """
    s, memory = decoder.start(h.expand(width, -1, -1), mask.expand(width, -1))
    words = mask.new_full((width, 1), BOS, dtype=torch.long)
    log_p = h.new_full((width,), -math.inf)
    log_p[0] = 0.0  # at first all rows are the same: only one of them counts
    length = torch.zeros_like(log_p)
    ended = mask.new_zeros(width)
    while words.shape[1] <= max_length and not ended.all():
        logits, s, _ = decoder.step(words[:, -1], s, memory)
        step_log_p = torch.log_softmax(logits, dim=1)  # (width, V)
        step_log_p[ended] = -math.inf
        step_log_p[ended, PAD] = 0.0  # what has ended goes on in one way, at no cost
        log_p, best = (log_p[:, None] + step_log_p).flatten().topk(width)
        rows, y = best // logits.shape[1], best % logits.shape[1]
        words = torch.cat([words[rows], y[:, None]], dim=1)
        length = (length + ~ended)[rows]
        s, ended = s[rows], ended[rows] | (y == EOS)
    return [
        (words[k, 1 : 1 + int(length[k])].tolist(), log_p[k].item())
        for k in (log_p / length**alpha).argsort(descending=True).tolist()
        if log_p[k] > -math.inf
    ]


def additive_scores_fault() -> tuple[
    str,
    tuple[Float[Tensor, "B S"], Float[Tensor, "B N A"], Float[Tensor, "A S"], Float[Tensor, "A"]],
]:
    """Say what is wrong with the black box of `additive_scores`, and how that can be seen.

    Returns:
        The letter of its mistake, and arguments for which it does not return what
        `additive_scores` does.
    """
    zero, one = torch.zeros(1, 1), torch.ones(1, 1)
    return "B", (zero, zero[None], one, one[0])  # tanh(0) is 0, and σ(0) = 1/2 in the box
