"""ViLBERT: two streams that ask each other; and what attention became in other fields.

Shapes: B pairs of a caption and a picture; captions of T tokens with D_t features, pictures of R
regions with F given features and D_v computed ones; H heads. Masks are boolean: True = real.
"""

import math

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

from course_pkg.attention import MultiHeadAttention, masked_softmax
from course_pkg.bert import BertEmbeddings, BertLayer


class VisualEmbeddings(nn.Module):
    """Turn regions into vectors that say what is seen and where, and add one for the whole picture.

    Parts: content (nn.Linear, F → D), place (nn.Linear, 5 → D) and norm, a layer norm with
    ε = 1e-12.

    Args:
        F: features that are given for each region.
        D: size of the vectors.
    """

    def __init__(self, F: int, D: int):
        super().__init__()
        self.content = nn.Linear(F, D)
        self.place = nn.Linear(5, D)
        self.norm = nn.LayerNorm(D, eps=1e-12)

    def forward(
        self,
        features: Float[Tensor, "B R F"],
        boxes: Float[Tensor, "B R 4"],
        regions: Bool[Tensor, "B R"],
    ) -> Float[Tensor, "B R+1 D"]:
        """Compute norm(content(f) + place([top, left, bottom, right, area])) for every region.

        Vector 0, [IMG], stands for the whole picture: its f is the mean over the real regions,
        its box is (0, 0, 1, 1). Regions 0 … R-1 follow      (Lu et al. 2019, §2.2)

        Args:
            features: what is seen in each region.
            boxes: top, left, bottom and right, as shares of the picture's height and width.
            regions: which regions are real; each picture has at least one.
        Returns:
            The vectors. Those of regions that are not real may be anything.
        """
        ### BEGIN SOLUTION
        real = regions[:, :, None]  # (B, R, 1)
        mean = torch.where(real, features, 0).sum(dim=1) / real.sum(dim=1)  # (B, F)
        features = torch.cat([mean[:, None], features], dim=1)
        whole = boxes.new_tensor([0, 0, 1, 1]).expand(len(boxes), 1, 4)
        boxes = torch.cat([whole, boxes], dim=1)
        top, left, bottom, right = boxes.unbind(dim=2)
        area = (bottom - top) * (right - left)  # (B, R+1)
        places = torch.cat([boxes, area[:, :, None]], dim=2)
        return self.norm(self.content(features) + self.place(places))
        ### END SOLUTION


class CoAttentionBlock(nn.Module):
    """Let words ask regions and regions ask words, each stream with parameters of its own.

    Parts, for the text stream (t) and the visual stream (v): attention_t and attention_v
    (MultiHeadAttention with biases, D_X is the other stream's size); norm_t and norm_v; expand_t,
    contract_t, expand_v and contract_v (nn.Linear, D → 4 D → D); last_norm_t and last_norm_v. All
    norms have ε = 1e-12.

    Args:
        D_t: size of the words' vectors.
        D_v: size of the regions' vectors.
        H: heads of either attention; divides both sizes.
    """

    def __init__(self, D_t: int, D_v: int, H: int):
        super().__init__()
        self.attention_t = MultiHeadAttention(D_t, H, D_X=D_v, bias=True)
        self.attention_v = MultiHeadAttention(D_v, H, D_X=D_t, bias=True)
        self.norm_t, self.norm_v = nn.LayerNorm(D_t, eps=1e-12), nn.LayerNorm(D_v, eps=1e-12)
        self.expand_t, self.contract_t = nn.Linear(D_t, 4 * D_t), nn.Linear(4 * D_t, D_t)
        self.expand_v, self.contract_v = nn.Linear(D_v, 4 * D_v), nn.Linear(4 * D_v, D_v)
        self.last_norm_t = nn.LayerNorm(D_t, eps=1e-12)
        self.last_norm_v = nn.LayerNorm(D_v, eps=1e-12)

    def forward(
        self,
        t: Float[Tensor, "B T D_t"],
        v: Float[Tensor, "B R D_v"],
        words: Bool[Tensor, "B T"] | None = None,
        regions: Bool[Tensor, "B R"] | None = None,
    ) -> tuple[
        Float[Tensor, "B T D_t"],
        Float[Tensor, "B R D_v"],
        Float[Tensor, "B H T R"],
        Float[Tensor, "B H R T"],
    ]:
        """Apply both halves, which see each other as they were before this block.

        t' = norm_t(t + attention_t(t, v)),   t'' = last_norm_t(t' + MLP_t(t'))
        v' = norm_v(v + attention_v(v, t)),   v'' = last_norm_v(v' + MLP_v(v'))
        MLP(x) = contract(gelu(expand(x)))      (Lu et al. 2019, §2.2, figure 2b)

        Args:
            t: the words' vectors; they are not changed in place.
            v: the regions' vectors; they are not changed in place.
            words: which words are real: no region attends to any other. All when None.
            regions: which regions are real: no word attends to any other. All when None.
        Returns:
            t'' and v'', the weights with which words attend to regions, and those with which
            regions attend to words.
        """
        ### BEGIN SOLUTION
        to_words = None if words is None else words[:, None]  # (B, 1, T)
        to_regions = None if regions is None else regions[:, None]  # (B, 1, R)
        from_v, A_t = self.attention_t(t, v, to_regions, return_weights=True)
        from_t, A_v = self.attention_v(v, t, to_words, return_weights=True)
        t, v = self.norm_t(t + from_v), self.norm_v(v + from_t)
        t = self.last_norm_t(t + self.contract_t(functional.gelu(self.expand_t(t))))
        v = self.last_norm_v(v + self.contract_v(functional.gelu(self.expand_v(v))))
        return t, v, A_t, A_v
        ### END SOLUTION


class ViLBERT(nn.Module):
    """Read a caption and a picture in two streams that meet in every co-attention block.

    Parts: text (BertEmbeddings), visual (VisualEmbeddings); alone, the layers that only the text
    stream has before they meet; blocks (CoAttentionBlock), and after block n layer n of text_layers
    and of visual_layers. All layers are BertLayer.

    Args:
        V: words in the vocabulary.
        context: the longest caption, in tokens.
        F: features that are given for each region.
        D_t, D_v: size of the words' and of the regions' vectors.
        H: heads of every attention.
        L_t: layers of the text stream alone.
        L: co-attention blocks.
    """

    def __init__(self, V: int, context: int, F: int, D_t: int, D_v: int, H: int, L_t: int, L: int):
        super().__init__()
        self.text = BertEmbeddings(V, context, D_t)
        self.visual = VisualEmbeddings(F, D_v)
        self.alone = nn.ModuleList(BertLayer(D_t, H) for _ in range(L_t))
        self.blocks = nn.ModuleList(CoAttentionBlock(D_t, D_v, H) for _ in range(L))
        self.text_layers = nn.ModuleList(BertLayer(D_t, H) for _ in range(L))
        self.visual_layers = nn.ModuleList(BertLayer(D_v, H) for _ in range(L))

    def forward(
        self,
        tokens: Int[Tensor, "B T"],
        words: Bool[Tensor, "B T"],
        features: Float[Tensor, "B R F"],
        boxes: Float[Tensor, "B R 4"],
        regions: Bool[Tensor, "B R"],
        return_weights: bool = False,
    ) -> (
        tuple[Float[Tensor, "B T D_t"], Float[Tensor, "B R+1 D_v"]]
        | tuple[Float[Tensor, "B T D_t"], Float[Tensor, "B R+1 D_v"], Float[Tensor, "L B H T R+1"]]
    ):
        """Read pairs of a caption and a picture      (Lu et al. 2019, §2.2, figure 1).

        Args:
            tokens: the captions; the first token of each is [CLS] (in the scenes, `<start>`).
            words: which tokens are real; nothing attends to the others.
            features, boxes: the regions, as for VisualEmbeddings.
            regions: which regions are real; nothing attends to the others. [IMG] always is.
            return_weights: whether to return the words' weights in the blocks as well.
        Returns:
            t, a vector for each token, and v, one for [IMG] and one for each region; or (t, v, A):
            A holds the weights with which words attend to [IMG] and the regions, by block.
        """
        ### BEGIN SOLUTION
        t, v = self.text(tokens), self.visual(features, boxes, regions)
        regions = functional.pad(regions, (1, 0), value=True)  # [IMG] is real
        for layer in self.alone:
            t, _ = layer(t, words[:, None])
        weights = []
        for n, block in enumerate(self.blocks):
            t, v, A, _ = block(t, v, words, regions)
            t, _ = self.text_layers[n](t, words[:, None])
            v, _ = self.visual_layers[n](v, regions[:, None])
            weights.append(A)
        return (t, v, torch.stack(weights)) if return_weights else (t, v)
        ### END SOLUTION


def alignment_score(
    t: Float[Tensor, "B T D_t"],
    v: Float[Tensor, "B R+1 D_v"],
    W_t: Float[Tensor, "D D_t"],
    b_t: Float[Tensor, "D"],
    W_v: Float[Tensor, "D D_v"],
    b_v: Float[Tensor, "D"],
    w: Float[Tensor, "D"],
    b: Float[Tensor, ""],
) -> Float[Tensor, "B"]:
    """Score how well captions fit pictures, from the vectors of [CLS] and [IMG].

    score = w · (relu(W_t t_0 + b_t) ⊙ relu(W_v v_0 + b_v)) + b      (Lu et al. 2019, §2.2)

    Args:
        t, v: what ViLBERT returned.
        W_t, b_t, W_v, b_v: one pooler for each stream, laid out as in nn.Linear.
        w, b: the output layer.
    Returns:
        One score for each pair: the logit of the probability that they belong together.
    """
    caption = torch.relu(functional.linear(t[:, 0], W_t, b_t))  # (B, D)
    picture = torch.relu(functional.linear(v[:, 0], W_v, b_v))
    return (caption * picture) @ w + b


def alignment_loss(scores: Float[Tensor, "B"], match: Bool[Tensor, "B"]) -> Float[Tensor, ""]:
    """Ask of every pair: does the caption match the picture?

    mean of -log σ(s) over pairs that match and of -log(1 - σ(s)) over the others, all together
    (Lu et al. 2019, §2.2)

    Args:
        scores: the logits; they may be large.
        match: which captions describe their picture.
    Returns:
        The loss in nats.
    """
    return functional.softplus(torch.where(match, -scores, scores)).mean()


def masked_multimodal_loss(
    word_logits: Float[Tensor, "B T V"],
    word_targets: Int[Tensor, "B T"],
    region_logits: Float[Tensor, "B R C"],
    region_targets: Float[Tensor, "B R C"],
    chosen: Bool[Tensor, "B R"],
    match: Bool[Tensor, "B"],
) -> Float[Tensor, ""]:
    """Ask for hidden words and for what hidden regions show, where caption and picture match.

    L = mean of -log softmax(word_logits)[target] over the words that have a target
      + mean of KL(p ‖ q) over the chosen regions, p the target and q = softmax(region_logits),
    KL(p ‖ q) = Σ_c p_c (log p_c - log q_c), and 0 log 0 = 0      (Lu et al. 2019, §2.2)

    Args:
        word_logits: the scores of all words.
        word_targets: the hidden words; -100 where none is asked for.
        region_logits: the scores of the detector's classes.
        region_targets: the detector's probabilities, rows that sum to one.
        chosen: which regions were hidden.
        match: which captions describe their picture; the other pairs do not count.
    Returns:
        The loss in nats. A mean over nothing counts as 0: no gradient comes from it, and no NaN.
    """
    word_targets = torch.where(match[:, None], word_targets, -100)
    words = functional.cross_entropy(word_logits.mT, word_targets, reduction="sum")
    words = words / (word_targets != -100).sum().clamp(min=1)
    chosen = chosen & match[:, None]
    log_q = torch.log_softmax(region_logits, dim=-1)
    kl = functional.kl_div(log_q, region_targets, reduction="none").sum(dim=-1)  # (B, R)
    return words + torch.where(chosen, kl, 0).sum() / chosen.sum().clamp(min=1)


def retrieve(scores: Float[Tensor, "N N"], k: int) -> float:
    """Measure recall@k: how many captions find their own picture among the k best.

    Args:
        scores: how well caption n fits picture m, in row n and column m; picture n is caption n's.
        k: how many pictures are looked at, from 1 to N.
    Returns:
        The share of captions whose picture has fewer than k others before it. A picture with the
        same score stands before it: a model that cannot tell pictures apart finds none.
    Raises:
        ValueError: k is less than 1 or more than N.
    """
    if not 1 <= k <= len(scores):
        raise ValueError(f"k must lie between 1 and {len(scores)}, got {k}")
    own = scores.diagonal()[:, None]
    before = (scores >= own).sum(dim=1) - 1  # without the picture itself
    return (before < k).double().mean().item()


def clip_loss(
    pictures: Float[Tensor, "N D"], captions: Float[Tensor, "N D"], log_scale: Float[Tensor, ""]
) -> Float[Tensor, ""]:
    """Let every picture of a batch choose among its captions, and every caption among the pictures.

    logits = e^log_scale · P Cᵀ, where P and C are the rows of both, divided by their lengths;
    L = (mean of -log softmax over each row, at its diagonal + the same over columns) / 2
    (Radford et al. 2021, §2.3, figure 3)

    Args:
        pictures: one vector for each picture.
        captions: one vector for each caption; caption n describes picture n.
        log_scale: the logarithm of the scale of the logits, which is learned; it may be large.
    Returns:
        The loss in nats.
    Raises:
        ValueError: pictures and captions differ in shape.
    """
    if pictures.shape != captions.shape:
        raise ValueError(f"shapes must agree, got {[*pictures.shape]} and {[*captions.shape]}")
    P = functional.normalize(pictures, dim=1)
    C = functional.normalize(captions, dim=1)
    logits = torch.exp(log_scale) * (P @ C.mT)  # (N, N): a row for each picture
    own = torch.arange(len(logits), device=logits.device)
    by_picture = functional.cross_entropy(logits, own)
    by_caption = functional.cross_entropy(logits.mT, own)
    return (by_picture + by_caption) / 2


def lay_out_path(
    features: Float[Tensor, "B P R F"],
    boxes: Float[Tensor, "B P R 4"],
    regions: Bool[Tensor, "B P R"],
) -> tuple[Float[Tensor, "B P*R F"], Float[Tensor, "B P*R 4"], Bool[Tensor, "B P*R"]]:
    """Lay the views of each path side by side, the first on the left, as one wide picture.

    left ← (p + left) / P,   right ← (p + right) / P   for the regions of view p = 0 … P-1;
    top and bottom stay

    Args:
        features: what is seen in each region of each view.
        boxes: top, left, bottom and right, as shares of the view; they are not changed in place.
        regions: which regions are real.
    Returns:
        All three for the wide picture, the regions of the first view first. The boxes of regions
        that are not real may be anything.
    """
    P = boxes.shape[1]
    step = torch.arange(P, device=boxes.device)[:, None]  # (P, 1)
    top, left, bottom, right = boxes.unbind(dim=3)  # (B, P, R) each
    boxes = torch.stack([top, (step + left) / P, bottom, (step + right) / P], dim=3)
    return features.flatten(1, 2), boxes.flatten(1, 2), regions.flatten(1, 2)


def path_selection_loss(
    scores: Float[Tensor, "B K"],
    right: Int[Tensor, "B"],
    paths: Bool[Tensor, "B K"] | None = None,
) -> Float[Tensor, ""]:
    """Ask of every instruction: which of the candidate paths does it describe?

    L = mean over the instructions of -log softmax(scores)[right], the softmax over the paths that
    are there      (Majumdar et al. 2020, "Vision-and-Language Navigation as Path Selection")

    Args:
        scores: how well each path fits its instruction; they may be large.
        right: the number of the right path.
        paths: which candidates are there, where instructions have fewer than K; all when None. The
            others take no part, whatever the size of the scores.
    Returns:
        The loss in nats.
    Raises:
        ValueError: the right path of an instruction is not among those that are there.
    """
    if paths is not None:
        if not paths.gather(1, right[:, None]).all():
            raise ValueError("the right path must be among the paths that are there")
        scores = scores.masked_fill(~paths, -torch.inf)
    return functional.cross_entropy(scores, right)


def agent_aware_attention(
    X: Float[Tensor, "... N D_X"],
    agents: Int[Tensor, "... N"],
    W_Q_self: Float[Tensor, "D_X D_Q"],
    W_K_self: Float[Tensor, "D_X D_Q"],
    W_Q_other: Float[Tensor, "D_X D_Q"],
    W_K_other: Float[Tensor, "D_X D_Q"],
    W_V: Float[Tensor, "D_X D_V"],
    mask: Bool[Tensor, "... N N"] | None = None,
) -> tuple[Float[Tensor, "... N D_V"], Float[Tensor, "... N N"]]:
    """Let every vector ask its own agent's vectors in one way, and all others' in another.

    E = (M ⊙ (Q_self K_selfᵀ) + (1 - M) ⊙ (Q_other K_otherᵀ)) / √D_Q,   A = softmax(E),   Y = A V,
    with Q_self = X W_Q_self and so on, V = X W_V, and M_ij = 1 where i and j belong to the same
    agent, else 0      (Yuan et al. 2021, §3.1, "Agent-Aware Attention")

    Args:
        X: the vectors of all agents at all times, in any order.
        agents: the number of each vector's agent, with the same axes before the last as X has
            before its last two; only which numbers are equal matters.
        W_Q_self, W_K_self: how a vector asks, and is found, within its agent.
        W_Q_other, W_K_other: the same between agents.
        W_V: the values, the same for both.
        mask: what may be attended to, boolean, of a shape that broadcasts to E's; everything when
            None.
    Returns:
        Y and the weights A. A row of A sums to one over the agent's own vectors and the others'
        together, or is all zeros when nothing is allowed; gradients are finite then. What is
        forbidden gets exactly 0, whatever the size of the scores.
    Raises:
        ValueError: there is not one agent's number for each vector.
    """
    if agents.shape[-1] != X.shape[-2]:
        raise ValueError(f"{X.shape[-2]} vectors need as many agents, got {agents.shape[-1]}")
    own = (X @ W_Q_self) @ (X @ W_K_self).mT  # (..., N, N)
    others = (X @ W_Q_other) @ (X @ W_K_other).mT
    same = agents.unsqueeze(-1) == agents.unsqueeze(-2)
    A = masked_softmax(torch.where(same, own, others) / math.sqrt(W_Q_self.shape[1]), mask)
    return A @ (X @ W_V), A


class TriangleUpdate(nn.Module):
    """Compute what every pair of residues learns from the triangles that it is a side of.

    Parts: norm (layer norm, D_z); a, b, gate_a and gate_b (nn.Linear, D_z → D); norm_out (layer
    norm, D) and out (nn.Linear, D → D_z); gate (nn.Linear, D_z → D_z).

    Args:
        D_z: size of the pairs' vectors.
        D: size of what is multiplied.
        outgoing: whether the other two sides start from i and j, or end there.
    """

    def __init__(self, D_z: int, D: int, outgoing: bool = True):
        super().__init__()
        self.outgoing = outgoing
        self.norm, self.norm_out = nn.LayerNorm(D_z), nn.LayerNorm(D)
        self.a, self.b = nn.Linear(D_z, D), nn.Linear(D_z, D)
        self.gate_a, self.gate_b = nn.Linear(D_z, D), nn.Linear(D_z, D)
        self.out, self.gate = nn.Linear(D, D_z), nn.Linear(D_z, D_z)

    def forward(self, z: Float[Tensor, "B N N D_z"]) -> Float[Tensor, "B N N D_z"]:
        """Compute the update, which the caller adds to z.

        z ← norm(z),   a_ij = σ(gate_a(z_ij)) ⊙ a(z_ij),   b_ij = σ(gate_b(z_ij)) ⊙ b(z_ij)
        update_ij = σ(gate(z_ij)) ⊙ out(norm_out(Σ_k a_ik ⊙ b_jk))
        Incoming edges: Σ_k a_ki ⊙ b_kj.      (Jumper et al. 2021, suppl. algorithms 11 and 12)

        Args:
            z: a vector for each ordered pair of residues; it is not changed in place.
        Returns:
            The update.
        """
        ### BEGIN SOLUTION
        z = self.norm(z)
        a = torch.sigmoid(self.gate_a(z)) * self.a(z)  # (B, N, N, D)
        b = torch.sigmoid(self.gate_b(z)) * self.b(z)
        sides = "bikd,bjkd->bijd" if self.outgoing else "bkid,bkjd->bijd"
        triangles = torch.einsum(sides, a, b)
        return torch.sigmoid(self.gate(z)) * self.out(self.norm_out(triangles))
        ### END SOLUTION


class RowAttentionWithPairBias(nn.Module):
    """Let the residues of each sequence attend to one another, steered by what pairs know.

    Parts: norm_m and norm_z (layer norms, D_m and D_z); query, key and value (nn.Linear, D_m → D,
    without bias); pair (nn.Linear, D_z → H, without bias); gate (nn.Linear, D_m → D); out
    (nn.Linear, D → D_m). Head h has features h D_h to (h+1) D_h - 1, with D_h = D / H.

    Args:
        D_m: size of the residues' vectors.
        D_z: size of the pairs' vectors.
        D: size of queries, keys and values, of all heads together.
        H: how many heads; divides D.
    """

    def __init__(self, D_m: int, D_z: int, D: int, H: int):
        super().__init__()
        self.H = H
        self.norm_m, self.norm_z = nn.LayerNorm(D_m), nn.LayerNorm(D_z)
        self.query, self.key = nn.Linear(D_m, D, bias=False), nn.Linear(D_m, D, bias=False)
        self.value = nn.Linear(D_m, D, bias=False)
        self.pair = nn.Linear(D_z, H, bias=False)
        self.gate, self.out = nn.Linear(D_m, D), nn.Linear(D, D_m)

    def forward(
        self, m: Float[Tensor, "B S N D_m"], z: Float[Tensor, "B N N D_z"]
    ) -> tuple[Float[Tensor, "B S N D_m"], Float[Tensor, "B S H N N"]]:
        """Compute the update, which the caller adds to m, row by row.

        m ← norm_m(m),   q, k, v = query(m), key(m), value(m) cut into heads,   g = σ(gate(m))
        a_sij = softmax over j of (q_si · k_sj / √D_h + pair(norm_z(z_ij))), for each head
        update_si = out(g_si ⊙ Σ_j a_sij v_sj, heads joined)
        (Jumper et al. 2021, suppl. algorithm 7)

        Args:
            m: a vector for each residue of each of the S aligned sequences.
            z: a vector for each ordered pair of residues, shared by all sequences.
        Returns:
            The update, and the weights a.
        """
        ### BEGIN SOLUTION
        m = self.norm_m(m)
        q, k, v = (
            part(m).unflatten(3, (self.H, -1))  # (B, S, N, H, D_h)
            for part in (self.query, self.key, self.value)
        )
        bias = self.pair(self.norm_z(z)).movedim(3, 1)[:, None]  # (B, 1, H, N, N)
        E = torch.einsum("bsihd,bsjhd->bshij", q, k) / math.sqrt(q.shape[-1]) + bias
        A = torch.softmax(E, dim=-1)
        found = torch.einsum("bshij,bsjhd->bsihd", A, v).flatten(3)  # (B, S, N, D)
        return self.out(torch.sigmoid(self.gate(m)) * found), A
        ### END SOLUTION


def alignment_score_fault() -> tuple[str, tuple[Tensor, ...]]:
    """Say what is wrong with the black box of `alignment_score`, and how that can be seen.

    Returns:
        The letter of its mistake, and arguments for which it does not return what
        `alignment_score` does.
    """
    t = v = torch.full((1, 1, 1), 2.0)
    W, zero = torch.ones(1, 1), torch.zeros(1)  # both poolers give 2: the score is 2 · 2 = 4,
    return "C", (t, v, W, zero, W, zero, W[0], zero[0])  # and tanh(2)², less than 1, in the box
