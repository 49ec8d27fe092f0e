"""BERT: an encoder that fills gaps and judges pairs of sentences, and then learns a task.

Shapes: B texts, T positions, D features, H heads, L layers, V words in the vocabulary, C classes.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

from course_pkg.attention import MultiHeadAttention, padding_mask


def tf_idf(
    counts: Float[Tensor, "N V"], training: Float[Tensor, "M V"] | None = None
) -> Float[Tensor, "N V"]:
    """Describe texts by their words; words that few texts contain weigh more.

    x_nv = counts_nv · idf_v, each text's row scaled to length 1,
    idf_v = log((1 + M) / (1 + df_v)) + 1, where df_v of the M training texts have word v
    (after Spärck Jones 1972)

    Args:
        counts: how often each text has each word.
        training: the counts of the texts on which idf is measured; `counts` itself when None.
    Returns:
        One row for each text; zeros for a text without words.
    """
    training = counts if training is None else training
    df = (training > 0).sum(dim=0)  # (V,)
    idf = torch.log((1 + len(training)) / (1 + df)) + 1
    weighted = counts * idf
    lengths = weighted.norm(dim=1, keepdim=True)
    return torch.where(lengths > 0, weighted / lengths, 0)


def mask_tokens(
    tokens: Int[Tensor, "B T"],
    special: list[int],
    mask: int,
    V: int,
    generator: torch.Generator | None = None,
) -> tuple[Int[Tensor, "B T"], Int[Tensor, "B T"]]:
    """Hide words and remember which: the input and the targets of masked language modelling.

    Every word that is not special is chosen with probability 0.15, each on its own (the authors
    choose 15 % of each text). A chosen word becomes `mask` with probability 0.8, one of all V words
    at random with 0.1, and stays as it is with 0.1      (Devlin et al. 2019, §3.1)

    Args:
        tokens: the texts; they are not changed.
        special: the words that are never chosen, padding among them.
        mask: the number of [MASK].
        V: words in the vocabulary.
        generator: the source of randomness, on tokens' device; torch's own when None.
    Returns:
        The texts with gaps; and the targets: the true words where one was chosen, -100 elsewhere.
    """
    ordinary = ~torch.isin(tokens, tokens.new_tensor(special))
    shape, device = tokens.shape, tokens.device
    choice, fate = torch.rand(2, *shape, generator=generator, device=device)
    drawn = torch.randint(V, shape, generator=generator, device=device)
    chosen = ordinary & (choice < 0.15)
    inputs = torch.where(chosen & (fate < 0.8), mask, tokens)
    inputs = torch.where(chosen & (fate >= 0.9), drawn, inputs)
    return inputs, torch.where(chosen, tokens, -100)


def next_sentence_pairs(
    documents: list[list[list[int]]], B: int, generator: torch.Generator | None = None
) -> tuple[list[tuple[list[int], list[int]]], list[int]]:
    """Draw pairs of sentences, and say of each whether the second follows the first.

    The first is any sentence that has a follower, all with the same probability. With probability
    ½ the second is that follower; otherwise another document is drawn, and then any of its
    sentences      (Devlin et al. 2019, §3.1)

    Args:
        documents: at least two, each a list of sentences, which are lists of words.
        B: how many pairs.
        generator: the source of randomness; torch's own when None.
    Returns:
        The pairs, and for each pair 0 if the second sentence follows the first, 1 if it does not.
    """

    def draw(size: int) -> int:
        return int(torch.randint(size, (), generator=generator))

    places = [(d, s) for d, sentences in enumerate(documents) for s in range(len(sentences) - 1)]
    pairs, targets = [], []
    for _ in range(B):
        document, place = places[draw(len(places))]
        target = draw(2)
        if target == 0:
            second = documents[document][place + 1]
        else:
            other = documents[(document + 1 + draw(len(documents) - 1)) % len(documents)]
            second = other[draw(len(other))]
        pairs.append((documents[document][place], second))
        targets.append(target)
    return pairs, targets


class BertEmbeddings(nn.Module):
    """Turn words into vectors that say what stands where, and in which of two sentences.

    Parts: token (V, D), position (context, D) and segment (2, D), tables drawn from N(0, 1/D);
    norm, a layer norm with ε = 1e-12.

    Args:
        V: words in the vocabulary.
        context: the longest text, in words.
        D: size of the vectors.
    """

    def __init__(self, V: int, context: int, D: int):
        super().__init__()
        self.token = nn.Embedding(V, D)
        self.position = nn.Embedding(context, D)
        self.segment = nn.Embedding(2, D)
        self.norm = nn.LayerNorm(D, eps=1e-12)
        for table in (self.token, self.position, self.segment):
            nn.init.normal_(table.weight, std=D**-0.5)

    def forward(
        self, tokens: Int[Tensor, "B T"], segments: Int[Tensor, "B T"] | None = None
    ) -> Float[Tensor, "B T D"]:
        """Compute norm(token[tokens] + position[0 … T-1] + segment[segments]).

        Args:
            tokens: the texts.
            segments: 0 for the words of the first sentence, 1 for those of the second; all 0 when
                None.
        Returns:
            The vectors (Devlin et al. 2019, §3).
        Raises:
            ValueError: the texts are longer than the context.
        """
        ### BEGIN SOLUTION
        T, context = tokens.shape[1], self.position.num_embeddings
        if T > context:
            raise ValueError(f"{T} words do not fit into a context of {context}")
        if segments is None:
            segments = torch.zeros_like(tokens)
        X = self.token(tokens) + self.position.weight[:T] + self.segment(segments)
        return self.norm(X)
        ### END SOLUTION


class BertLayer(nn.Module):
    """One layer of BERT: attention and a small network, with a layer norm after each sum.

    Args:
        D: size of the vectors.
        H: how many heads; divides D.
    """

    def __init__(self, D: int, H: int):
        super().__init__()
        self.attention = MultiHeadAttention(D, H, bias=True)
        self.norm_1 = nn.LayerNorm(D, eps=1e-12)
        self.expand = nn.Linear(D, 4 * D)
        self.contract = nn.Linear(4 * D, D)
        self.norm_2 = nn.LayerNorm(D, eps=1e-12)

    def forward(
        self, X: Float[Tensor, "B T D"], mask: Bool[Tensor, "... T T"] | None = None
    ) -> tuple[Float[Tensor, "B T D"], Float[Tensor, "B H T T"]]:
        """Apply the layer.

        X ← norm_1(X + attention(X)),   X ← norm_2(X + contract(gelu(expand(X)))),
        gelu(x) = x · Φ(x), with Φ the normal distribution's cumulative function
        (Vaswani et al. 2017, §3.1; Hendrycks & Gimpel 2016)

        Args:
            X: the vectors.
            mask: what may be attended to, boolean; everything when None.
        Returns:
            The new vectors, and the attention's weights.
        """
        ### BEGIN SOLUTION
        Y, A = self.attention(X, mask=mask, return_weights=True)
        X = self.norm_1(X + Y)
        return self.norm_2(X + self.contract(functional.gelu(self.expand(X)))), A
        ### END SOLUTION


class BertModel(nn.Module):
    """BERT's encoder: every word's vector is computed from all words, on both sides of it.

    Args:
        V: words in the vocabulary.
        context: the longest text, in words.
        D: size of the vectors.
        H: heads of each layer.
        L: layers.
    """

    def __init__(self, V: int, context: int, D: int, H: int, L: int):
        super().__init__()
        self.embeddings = BertEmbeddings(V, context, D)
        self.layers = nn.ModuleList(BertLayer(D, H) for _ in range(L))

    def forward(
        self,
        tokens: Int[Tensor, "B T"],
        segments: Int[Tensor, "B T"] | None = None,
        lengths: Int[Tensor, "B"] | None = None,
        return_weights: bool = False,
    ) -> Float[Tensor, "B T D"] | tuple[Float[Tensor, "B T D"], Float[Tensor, "L B H T T"]]:
        """Read texts: the embeddings, then all layers, none of which attends to padding.

        Args:
            tokens: the texts.
            segments: the sentence of each word, 0 or 1; all 0 when None.
            lengths: how many words of each text are real; all when None.
            return_weights: whether to return the attention's weights of all layers as well.
        Returns:
            One vector for each word, or (vectors, A).
        """
        ### BEGIN SOLUTION
        mask = None if lengths is None else padding_mask(lengths, tokens.shape[1])
        X = self.embeddings(tokens, segments)
        weights = []
        for layer in self.layers:
            X, A = layer(X, mask)
            weights.append(A)
        return (X, torch.stack(weights)) if return_weights else X
        ### END SOLUTION


def mlm_head(
    X: Float[Tensor, "... D"],
    W: Float[Tensor, "D D"],
    b: Float[Tensor, "D"],
    gain: Float[Tensor, "D"],
    shift: Float[Tensor, "D"],
    token: Float[Tensor, "V D"],
    bias: Float[Tensor, "V"],
) -> Float[Tensor, "... V"]:
    """Score every word of the vocabulary for every place, with the embedding as output layer.

    logits = LN(gelu(X Wᵀ + b)) tokenᵀ + bias,   LN with ε = 1e-12      (Devlin et al. 2019, §3.1)

    Args:
        X: the encoder's vectors.
        W, b: one more linear layer, laid out as in nn.Linear.
        gain, shift: scale and shift of the layer norm.
        token: the table of the embeddings.
        bias: one number for each word.
    Returns:
        The logits.
    """
    hidden = functional.gelu(functional.linear(X, W, b))
    hidden = functional.layer_norm(hidden, gain.shape, gain, shift, eps=1e-12)
    return hidden @ token.T + bias


def nsp_head(
    X: Float[Tensor, "B T D"],
    W_P: Float[Tensor, "D D"],
    b_P: Float[Tensor, "D"],
    W: Float[Tensor, "C D"],
    b: Float[Tensor, "C"],
) -> Float[Tensor, "B C"]:
    """Classify whole texts by the vector of their first token, [CLS].

    logits = W tanh(W_P x_0 + b_P) + b
    (Devlin et al. 2019, §3.1; the tanh is in the code published with it)

    Args:
        X: the encoder's vectors.
        W_P, b_P: the pooler, laid out as in nn.Linear.
        W, b: the classes' weights; for next sentences C = 2.
    Returns:
        The logits.
    """
    pooled = torch.tanh(functional.linear(X[:, 0], W_P, b_P))  # (B, D)
    return functional.linear(pooled, W, b)


class BertPretraining(nn.Module):
    """BERT with the two heads that it is pretrained with.

    Parts: bert (BertModel); transform (nn.Linear), norm (nn.LayerNorm) and bias (V) for `mlm_head`,
    which also uses the embedding's table; pooler and next_sentence (nn.Linear) for `nsp_head`.

    Args:
        V, context, D, H, L: as for BertModel.
    """

    def __init__(self, V: int, context: int, D: int, H: int, L: int):
        super().__init__()
        self.bert = BertModel(V, context, D, H, L)
        self.transform = nn.Linear(D, D)
        self.norm = nn.LayerNorm(D, eps=1e-12)
        self.bias = nn.Parameter(torch.zeros(V))
        self.pooler = nn.Linear(D, D)
        self.next_sentence = nn.Linear(D, 2)

    def forward(
        self,
        tokens: Int[Tensor, "B T"],
        segments: Int[Tensor, "B T"] | None = None,
        lengths: Int[Tensor, "B"] | None = None,
    ) -> tuple[Float[Tensor, "B T V"], Float[Tensor, "B 2"]]:
        """Score the words for every place, and whether the second sentence follows.

        Args:
            tokens, segments, lengths: as for BertModel.
        Returns:
            The logits of both heads.
        """
        ### BEGIN SOLUTION
        X = self.bert(tokens, segments, lengths)
        parts = [*self.transform.parameters(), *self.norm.parameters()]
        words = mlm_head(X, *parts, self.bert.embeddings.token.weight, self.bias)
        parts = [*self.pooler.parameters(), *self.next_sentence.parameters()]
        return words, nsp_head(X, *parts)
        ### END SOLUTION


def pretraining_loss(
    mlm_logits: Float[Tensor, "B T V"],
    mlm_targets: Int[Tensor, "B T"],
    nsp_logits: Float[Tensor, "B 2"],
    nsp_targets: Int[Tensor, "B"],
) -> Float[Tensor, ""]:
    """Add the two losses: the mean over all chosen words, and the mean over all pairs.

    L = mean of -log softmax(mlm_logits)[target] where there is one
      + mean of -log softmax(nsp_logits)[target]      (Devlin et al. 2019, §A.2)

    Args:
        mlm_logits: the scores of all words at every place.
        mlm_targets: the true words; -100 where none was chosen.
        nsp_logits: the scores of "follows" and "does not".
        nsp_targets: 0 for pairs that follow, 1 for others.
    Returns:
        The loss in nats. Where no word was chosen in the whole batch, the first mean counts as 0,
        and has no gradient.
    """
    words = functional.cross_entropy(mlm_logits.mT, mlm_targets, reduction="sum")
    chosen = (mlm_targets != -100).sum().clamp(min=1)
    return words / chosen + functional.cross_entropy(nsp_logits, nsp_targets)


class SentenceClassifier(nn.Module):
    """BERT with a fresh output layer, to be fine-tuned on texts with labels.

    Parts: bert (BertModel) and pooler (nn.Linear), of the same names and shapes as in
    BertPretraining, and classifier (nn.Linear).

    Args:
        V, context, D, H, L: as for BertModel.
        C: classes.
    """

    def __init__(self, V: int, context: int, D: int, H: int, L: int, C: int):
        super().__init__()
        self.bert = BertModel(V, context, D, H, L)
        self.pooler = nn.Linear(D, D)
        self.classifier = nn.Linear(D, C)

    def forward(
        self,
        tokens: Int[Tensor, "B T"],
        segments: Int[Tensor, "B T"] | None = None,
        lengths: Int[Tensor, "B"] | None = None,
    ) -> Float[Tensor, "B C"]:
        """Score the classes of whole texts.

        Args:
            tokens, segments, lengths: as for BertModel.
        Returns:
            The logits.
        """
        ### BEGIN SOLUTION
        X = self.bert(tokens, segments, lengths)
        return nsp_head(X, *self.pooler.parameters(), *self.classifier.parameters())
        ### END SOLUTION

    def start_from(self, state: dict[str, Tensor]) -> None:
        """Take over what pretraining has learned: the encoder and the pooler.

        Args:
            state: the state dict of a BertPretraining of the same sizes.
        """
        ### BEGIN SOLUTION
        own = self.state_dict()
        own.update({name: state[name] for name in own if not name.startswith("classifier.")})
        self.load_state_dict(own)
        ### END SOLUTION


def span_head(
    X: Float[Tensor, "B T D"],
    S: Float[Tensor, "D"],
    E: Float[Tensor, "D"],
    allowed: Bool[Tensor, "B T"] | None = None,
) -> tuple[Float[Tensor, "B T"], Float[Tensor, "B T"]]:
    """Score every token as the first and as the last one of an answer.

    start_t = S · x_t,   end_t = E · x_t; -∞ for both where no answer may begin or end
    (Devlin et al. 2019, §4.2; a softmax over t makes each of the two a distribution)

    Args:
        X: the encoder's vectors.
        S, E: what is learned, a vector for the start and one for the end.
        allowed: the tokens that may be part of an answer, boolean; all when None.
    Returns:
        start and end, the scores.
    """
    start, end = X @ S, X @ E  # (B, T) each
    if allowed is None:
        return start, end
    return start.masked_fill(~allowed, -torch.inf), end.masked_fill(~allowed, -torch.inf)


def best_span(
    start: Float[Tensor, "B T"],
    end: Float[Tensor, "B T"],
    longest: int,
    margin: float = 0.0,
) -> tuple[Int[Tensor, "B"], Int[Tensor, "B"]]:
    """Find the span with the best score, or answer that there is none.

    score(i, j) = start_i + end_j   for 1 ≤ i ≤ j < i + longest,   score(0, 0) for "no answer",
    which is chosen unless a span scores more than that by over `margin`
    (Devlin et al. 2019, §4.2 and §4.3, where the margin is τ)

    Args:
        start, end: the scores of `span_head`; token 0 is [CLS], which is in no answer.
        longest: how many tokens an answer may have.
        margin: by how much an answer must beat "no answer"; it may be negative.
    Returns:
        The first and the last token of each text's answer, whole numbers; 0 and 0 for no answer.
        Of several equally good spans, any.
    Raises:
        ValueError: longest is less than 1.
    """
    if longest < 1:
        raise ValueError(f"an answer has at least one token, but longest is {longest}")
    T = start.shape[1]
    is_span = torch.ones(T, T, dtype=torch.bool, device=start.device).triu().tril(longest - 1)
    is_span[0] = False
    scores = start[:, :, None] + end[:, None]  # (B, T, T)
    best, place = scores.masked_fill(~is_span, -torch.inf).flatten(1).max(dim=1)
    is_answer = best > start[:, 0] + end[:, 0] + margin
    return torch.where(is_answer, place // T, 0), torch.where(is_answer, place % T, 0)


def load_bert(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Turn the weights of a published BERT into those of our `BertPretraining`.

    The names are those of Hugging Face's BertForPreTraining, of BertForMaskedLM, which has no
    pooler and no next-sentence head, or of BertModel, whose names lack the prefix "bert.". The
    matrices are laid out for x Wᵀ, as in nn.Linear, and those of our attention for x W. Old files
    call a norm's weight and bias gamma and beta, and hold bert.embeddings.position_ids, which is
    not a weight; cls.predictions.decoder repeats the embedding and the bias.

    Args:
        state: the state dict of a BERT.
    Returns:
        A state dict for `BertPretraining`, with the parts that were given.
    Raises:
        ValueError: the state holds an unknown name, or a decoder that does not repeat the
            embedding and the bias.
    """
    outside = {
        "embeddings.word_embeddings": "bert.embeddings.token",
        "embeddings.position_embeddings": "bert.embeddings.position",
        "embeddings.token_type_embeddings": "bert.embeddings.segment",
        "embeddings.LayerNorm": "bert.embeddings.norm",
        "pooler.dense": "pooler",
        "cls.predictions": "",
        "cls.predictions.transform.dense": "transform",
        "cls.predictions.transform.LayerNorm": "norm",
        "cls.predictions.decoder": "decoder",
        "cls.seq_relationship": "next_sentence",
    }
    in_layers = {
        "attention.output.LayerNorm": "norm_1",
        "intermediate.dense": "expand",
        "output.dense": "contract",
        "output.LayerNorm": "norm_2",
    }
    in_attention = {"self.query": "Q", "self.key": "K", "self.value": "V", "output.dense": "O"}
    ours = {}
    for name, value in state.items():
        place, _, kind = name.removeprefix("bert.").rpartition(".")
        if (place, kind) == ("embeddings", "position_ids"):
            continue
        if place.endswith("LayerNorm"):
            kind = {"gamma": "weight", "beta": "bias"}.get(kind, kind)
        if kind not in ("weight", "bias"):
            raise ValueError(f"our BERT has no place for {name}")
        if place.startswith("encoder.layer."):
            _, _, number, place = place.split(".", 3)
            prefix, part = f"bert.layers.{number}.", place.removeprefix("attention.")
            if place != part and part in in_attention:
                letter = {"weight": "W", "bias": "b"}[kind]
                place = f"{prefix}attention.{letter}_{in_attention[part]}"
                ours[place] = value.t()  # a bias stays as it is
                continue
            if place in in_layers:
                ours[f"{prefix}{in_layers[place]}.{kind}"] = value
                continue
        elif place in outside:
            ours[f"{outside[place]}.{kind}".removeprefix(".")] = value
            continue
        raise ValueError(f"our BERT has no place for {name}")
    for kind, twin in {"weight": "bert.embeddings.token.weight", "bias": "bias"}.items():
        repeated = ours.pop(f"decoder.{kind}", None)
        if repeated is not None and not torch.equal(repeated, ours[twin]):
            raise ValueError(f"cls.predictions.decoder.{kind} should repeat {twin}")
    return ours


def pretraining_loss_fault() -> tuple[
    str,
    tuple[Float[Tensor, "B T V"], Int[Tensor, "B T"], Float[Tensor, "B 2"], Int[Tensor, "B"]],
]:
    """Say what is wrong with the black box of `pretraining_loss`, and how that can be seen.

    Returns:
        The letter of its mistake, and arguments for which it does not return what
        `pretraining_loss` does.
    """
    words, targets = torch.zeros(2, 2, 2), torch.tensor([[0, 0], [0, -100]])
    words[1, 0, 0] = 9.0  # text 1 has one chosen word: it counts a third, and half in the box
    return "D", (words, targets, torch.zeros(2, 2), torch.tensor([0, 1]))
