"""Known wrong solutions of attention."""

from autograder.black_boxes import black_box, wrong_answers
from autograder.mistakes import changed, equivalent, mistakes
from course_pkg.attention import (
    MultiHeadAttention,
    SelfAttention,
    attention_cost,
    causal_mask,
    masked_softmax,
    merge_heads,
    padding_mask,
    scaled_dot_attention,
    soft_lookup,
    split_heads,
    split_heads_fault,
)

mistakes(
    soft_lookup,
    """
farthest: the minus sign is missing, so that the farthest row counts most
    -(X - q) → (X - q)
root_squared: the distance is a root, squared again: its gradient is NaN where it is zero
    sum(dim=1) → sum(dim=1).sqrt().square()
    says: yours is nan (
not_squared: the distance is not squared
    sum(dim=1) → sum(dim=1).sqrt()
no_half: the factor 1/2 is missing
    (2 * temperature) → temperature
multiplied: the distance is multiplied by the temperature instead of divided
    (2 * temperature) → 2 * temperature
no_temperature: the temperature is ignored
    (2 * temperature) → 2
standard_deviation: the temperature is squared, as a standard deviation would be
    (2 * temperature) → (2 * temperature**2)
another_default: the temperature is ½ where none is given, and not 1
    float = 1.0 → float = 0.5
averaged: the squares are averaged over the features instead of summed
    sum(dim=1) → mean(dim=1)
sigmoids: each weight goes through σ, and nothing makes them sum to one
    torch.softmax(e, dim=0) → torch.sigmoid(e)
hard: only the nearest row is returned, whatever the temperature is
    torch.softmax(e, dim=0) → nn.functional.one_hot(e.argmax(), len(X)).to(X)
scores_returned: the scores are returned in place of the weights
    a @ X, a → a @ X, e
returned_in_wrong_order: a is returned before y
    a @ X, a → a, a @ X
* underflow: all exponentials become 0, and 0/0 is NaN
    torch.softmax(e, dim=0) → e.exp() / e.exp().sum()
    says: yours is nan
no_error: a temperature of zero gives NaN instead of an error
    temperature <= 0 → False
    says: should raise ValueError when the temperature is 0
""",
)

mistakes(
    scaled_dot_attention,
    """
* over_queries: the softmax runs over the queries instead of the keys
    dim=-1 → dim=-2
unscaled: the scores are not divided by √D_Q
    / math.sqrt(Q.shape[-1]) →
* too_much: the scores are divided by D_Q instead of √D_Q
    math.sqrt(Q.shape[-1]) → Q.shape[-1]
* by_rows: the scores are divided by √N_X instead of √D_Q
    math.sqrt(Q.shape[-1]) → math.sqrt(K.shape[-2])
by_queries: the scores are divided by √N_Q instead of √D_Q
    math.sqrt(Q.shape[-1]) → math.sqrt(Q.shape[-2])
* by_values: the scores are divided by √D_V instead of √D_Q
    math.sqrt(Q.shape[-1]) → math.sqrt(V.shape[-1])
multiplied: the scores are multiplied by √D_Q
    / math.sqrt(Q.shape[-1]) → * math.sqrt(Q.shape[-1])
* after_the_softmax: the weights are divided by √D_Q, after the softmax
    / math.sqrt(Q.shape[-1]) →
    torch.softmax(E, dim=-1) → torch.softmax(E, dim=-1) / math.sqrt(Q.shape[-1])
output_scaled: the output is divided by √D_Q, and the scores are not
    / math.sqrt(Q.shape[-1]) →
    A @ V, A → A @ V / math.sqrt(Q.shape[-1]), A
cosines: queries and keys are scaled to length one: cosines in place of scores
    / math.sqrt(Q.shape[-1]) → / Q.norm(dim=-1, keepdim=True) / K.norm(dim=-1)[..., None, :]
by_distance: distances are used in place of dot products
    Q @ K.mT / math.sqrt(Q.shape[-1]) → -torch.cdist(Q, K).square() / 2
opposite: the scores have the wrong sign
    Q @ K.mT → -Q @ K.mT
* no_exponential: the scores are divided by their sum, without the exponential
    torch.softmax(E, dim=-1) → E / E.sum(dim=-1, keepdim=True)
sigmoids: each score goes through σ, and nothing makes the rows sum to one
    torch.softmax(E, dim=-1) → torch.sigmoid(E)
one_softmax: one softmax runs over all queries and keys together
    torch.softmax(E, dim=-1) → torch.softmax(E.flatten(-2), dim=-1).view_as(E)
first_query: all queries get the weights of the first one
    E = Q @ → E = Q[..., :1, :].expand_as(Q) @
mean_query: all queries are replaced by their mean
    E = Q @ → E = Q.mean(dim=-2, keepdim=True).expand_as(Q) @
first_table: every member of the batch looks things up in the first one's table
    E = Q @ → K, V = (K[:1], V[:1]) if K.dim() > 2 else (K, V); E = Q @
keys_returned: the keys are averaged in place of the values
    A @ V, A → A @ K, A
scores_returned: the scores are returned in place of the weights
    A @ V, A → A @ V, E
weighed_by_scores: the values are averaged by the scores themselves, not by their softmax
    A @ V, A → E @ V, A
divided_again: the weighted sum is divided by N_X once more
    A @ V, A → A @ V / K.shape[-2], A
transposed: A is returned transposed
    A @ V, A → A @ V, A.mT
returned_in_wrong_order: A is returned before Y
    A @ V, A → A, A @ V
detached: no gradient passes through the weights
    A @ V, A → A.detach() @ V, A
    says: No gradient reaches Q
in_place: Q is scaled in place
    E = Q @ K.mT / math.sqrt(Q.shape[-1]) → Q.data /= math.sqrt(Q.shape[-1]); E = Q @ K.mT
all_axes: K.T reverses all axes of a batch
    K.mT → K.permute(*reversed(range(K.dim())))
    says: raised RuntimeError: The size of tensor a
overflow: exponentials overflow, and ∞/∞ is NaN
    torch.softmax(E, dim=-1) → E.exp() / E.exp().sum(dim=-1, keepdim=True)
    says: yours is nan
no_error: queries of one feature are stretched by broadcasting instead of refused
    Q.shape[-1] != K.shape[-1] → Q.shape[-1] > K.shape[-1]
    Q @ K.mT → Q.expand(*Q.shape[:-1], K.shape[-1]) @ K.mT
    says: should raise ValueError when queries have 1 feature
""",
)

mistakes(
    SelfAttention,
    """
OverflowingSelf: exponentials overflow, and ∞/∞ is NaN
    torch.softmax(E, dim=-1) → E.exp() / E.exp().sum(dim=-1, keepdim=True)
    says: yours is nan
KeysAreQueries: the keys are the queries: W_K is not used
    X @ self.W_K → Q
QueriesAreKeys: the queries are the keys: W_Q is not used
    X @ self.W_Q → X @ self.W_K
* Swapped: W_Q and W_K are mixed up
    Q @ K.mT → K @ Q.mT
ValuesNotProjected: the values are the inputs themselves: W_V is not used
    X @ self.W_V → X
NothingAsked: the weights come from X Xᵀ: W_Q and W_K are not used
    X @ self.W_Q → X
    X @ self.W_K → X
Unscaled: the scores are not divided by √D_Q
    / math.sqrt(Q.shape[-1]) →
ScaledByInput: the scores are divided by √D_X instead of √D_Q
    Q.shape[-1] → X.shape[-1]
ScaledByValue: the scores are divided by √D_V instead of √D_Q
    Q.shape[-1] → V.shape[-1]
OverQueries: the softmax runs over the queries instead of the keys
    dim=-1 → dim=-2
Causal: a vector attends only to itself and what comes before it
    torch.softmax(E, dim=-1) → masked_softmax(E, causal_mask(X.shape[-2]))
FirstMember: every member of the batch attends to the first one's vectors
    X @ self.W_K → (X := X[:1] if X.dim() > 2 else X) @ self.W_K
WrongOrder: A is returned before Y
    A @ V, A → A, A @ V
""",
)

mistakes(
    causal_mask,
    """
future: the mask is the wrong way round: each position sees what comes after it
    tril(past) → triu(past)
* not_itself: a position does not see itself
    tril(past) → tril(past - 1)
one_ahead: a position also sees the next one
    tril(past) → tril(past + 1)
inverted: True means forbidden: here True = may attend
    return → return ~
numbers: it holds ones and zeros instead of truth values
    , dtype=torch.bool →
added: it holds 0 and -∞, to be added to the scores, instead of truth values
    torch.ones(T, past + T, dtype=torch.bool) → torch.full((T, past + T), -torch.inf)
    tril(past) → triu(past + 1)
no_past: the columns of the past are missing
    T, past + T → T, T
    tril(past) → tril()
past_forbidden: the past has its columns, but the triangle starts at the first of them
    tril(past) → tril()
past_last: the columns of the past come after those of the T positions
    tril(past) → tril(past).roll(-past, dims=1)
past_asks: the positions of the past also ask: there are past + T rows
    T, past + T → past + T, past + T
    tril(past) → tril()
""",
)

mistakes(
    padding_mask,
    """
inverted: True means padding: here True = may attend
    return → return ~
one_too_many: the first position of the padding is allowed too
    < lengths[ → <= lengths[
one_too_few: the last real position is forbidden
    < lengths[:, None] → < lengths[:, None] - 1
two_axes: the axis of the queries is missing
    )[:, None] → )
* queries_masked: the axes of queries and keys are exchanged: queries are masked
    )[:, None] → )[:, :, None]
at_the_start: the padding is taken to come before the real positions
    )[:, None] → ).flip(1)[:, None]
own_T: the longest sequence decides how many positions there are, not T
    arange(T, → arange(int(lengths.max()),
first_for_all: every sequence gets the mask of the first
    < lengths[:, None] → < lengths[:1].expand(len(lengths))[:, None]
sorted_by_length: lengths are sorted, so that masks no longer belong to their sequences
    < lengths[:, None] → < lengths.sort(descending=True).values[:, None]
numbers: it holds ones and zeros instead of truth values
    )[:, None] → )[:, None].float()
""",
)

mistakes(
    masked_softmax,
    """
ignored: the mask is ignored
    if mask is None → if True
* inverted: the mask is inverted: allowed keys are forbidden
    (~mask, torch → (mask, torch
    (~mask, 0) → (mask, 0)
zero_scores: forbidden scores are set to 0, whose exponential is 1
    .masked_fill(~mask, 0) →
    torch.finfo(E.dtype).min → 0
after_the_softmax: forbidden weights are set to zero after the softmax, and rows sum to less
    .masked_fill(~mask, torch.finfo(E.dtype).min) →
indexed: the mask picks entries of E by indexing, which does not broadcast
    E.masked_fill(~mask, torch.finfo → E.index_put([~mask], E.new_tensor(torch.finfo
    .min) → .min))
    .masked_fill(~mask, 0) → .index_put([~mask], E.new_zeros([]))
    says: masked_softmax raised IndexError
nan_rows: a row without an allowed key is NaN: 0/0 from a softmax over -∞ alone
    torch.finfo(E.dtype).min → -torch.inf
    .masked_fill(~mask, 0) →
even_rows: a row without an allowed key gets equal weights instead of zeros
    .masked_fill(~mask, 0) →
nan_gradient: -∞ is added to forbidden scores, and NaN replaced later, but not in gradients
    E.masked_fill(~mask, torch.finfo(E.dtype).min) → E + torch.where(mask, 0, -torch.inf)
    .masked_fill(~mask, 0) → .nan_to_num(0)
minus_a_billion: forbidden scores are set to -1e9, which allowed ones may lie below
    torch.finfo(E.dtype).min → -1e9
    says: A of shifted scores
""",
)

changed(
    masked_softmax,
    "over_queries",
    "the softmax runs over the queries",
    ("dim=-1)\n", "dim=-2)\n"),
    ("dim=-1).masked_fill", "dim=-2).masked_fill"),
)

changed(
    masked_softmax,
    "over_everything",
    "one query's softmax runs over all queries' keys",
    ("(E, dim=-1)\n", "(E.flatten(-2), dim=-1).view_as(E)\n"),
    ("(E, dim=-1).masked_fill", "(E.flatten(-2), dim=-1).view_as(E).masked_fill"),
)

mistakes(
    masked_softmax,
    """
only_lowered: forbidden scores get -10 added, which is not low enough
    E.masked_fill(~mask, torch.finfo(E.dtype).min) → E - 10.0 * ~mask
    .masked_fill(~mask, 0) →
* not_low_enough: forbidden scores are set to -100 instead of the lowest number there is
    torch.finfo(E.dtype).min → -100.0
* in_place: E is changed in place
    E = E.masked_fill( → E.data.masked_fill_(
    torch.finfo(E.dtype).min → -1e9
""",
)

mistakes(
    split_heads,
    """
* view_only: a view cuts the memory into heads without a transpose: positions are mixed
    B, T, H, D // H).transpose(1, 2) → B, H, T, D // H)
not_transposed: the heads' axis stays after the positions': (B, T, H, D_h)
    .transpose(1, 2) →
dealt_out: features are dealt out like cards: head h gets features h, h + H, …
    H, D // H).transpose(1, 2) → D // H, H).permute(0, 3, 1, 2)
features_first: positions and features are exchanged: (B, H, D_h, T)
    transpose(1, 2) → permute(0, 2, 3, 1)
heads_first: the heads' axis comes first: (H, B, T, D_h)
    transpose(1, 2) → permute(2, 0, 1, 3)
H_as_size: H is taken for the size of a head
    H, D // H → D // H, H
first_for_all: every head gets the first features
    X.reshape(B, T, H, D // H).transpose(1, 2) → X[:, None, :, : D // H].expand(-1, H, -1, -1)
reversed_heads: the heads are in reverse order
    transpose(1, 2) → transpose(1, 2).flip(1)
everything: every head gets all features
    X.reshape(B, T, H, D // H).transpose(1, 2) → X[:, None].expand(-1, H, -1, -1)
dropped: features that are left over are silently dropped
    if D % H → if False
    X.reshape → X[:, :, : D // H * H].reshape
    says: should raise ValueError when
""",
)

black_box(
    split_heads,
    "dealt_out",
    curve='visiting["2 heads"].losses',
    label="mean squared error",
)

wrong_answers(split_heads_fault, "C")
mistakes(
    split_heads_fault,
    """
one_head: there is one head
    (X, 2) → (X, 1)
    says: With these arguments the black box gives what is right
head_for_each: every feature has a head of its own
    (X, 2) → (X, 4)
    says: With these arguments the black box gives what is right
two_features: each of two heads gets one feature
    0.0, 1.0, 2.0, 3.0 → 0.0, 1.0
    says: With these arguments the black box gives what is right
all_alike: all features are alike
    0.0, 1.0, 2.0, 3.0 → 5.0, 5.0, 5.0, 5.0
    says: With these arguments the black box gives what is right
three_heads: three heads cannot share four features
    (X, 2) → (X, 3)
    says: split_heads raised ValueError
no_batch: X has no axis for the batch
    [[[0.0, 1.0, 2.0, 3.0]]] → [[0.0, 1.0, 2.0, 3.0]]
    says: split_heads raised ValueError
only_letter: the arguments are missing
    "C", (X, 2) → "C"
    says: should return (letter, arguments)
""",
)

mistakes(
    merge_heads,
    """
view_only: a view joins what lies side by side in memory: heads and positions are mixed
    X.transpose(1, 2).flatten(2) → X.reshape(len(X), X.shape[2], -1)
interleaved: the heads' features are interleaved
    transpose(1, 2) → permute(0, 2, 3, 1)
summed: the heads are added up
    X.transpose(1, 2).flatten(2) → X.sum(dim=1)
averaged: the heads are averaged
    X.transpose(1, 2).flatten(2) → X.mean(dim=1)
along_positions: the heads are joined one after the other along the positions
    X.transpose(1, 2).flatten(2) → X.flatten(1, 2)
first_head: only the first head is returned
    X.transpose(1, 2).flatten(2) → X[:, 0]
reversed_heads: the heads are joined in reverse order
    X.transpose → X.flip(1).transpose
features_first: features come before positions: (B, H D_h, T)
    flatten(2) → flatten(2).mT
in_single_precision: the heads are copied into a tensor of single precision, whatever X has
    flatten(2) → flatten(2).to(torch.promote_types(X.dtype, torch.float))
    says: merged should be torch.float16 as X is
not_joined: the axes are in order, but heads and features are not joined
    .flatten(2) →
""",
)

mistakes(
    MultiHeadAttention,
    """
* ScaledByD: the scores are divided by √D instead of √D_h
    Q.shape[-1] → X.shape[-1]
Unscaled: the scores are not divided by √D_h
    / math.sqrt(Q.shape[-1]) →
NoOutput: W_O is not used
    @ self.W_O →
NoOutputBias: b_O is not added
    self.W_O + self.b_O → self.W_O
OwnValues: the values come from X where it has the memory's shape
    memory @ self.W_V → (X if X.shape == memory.shape else memory) @ self.W_V
NoQueryBias: b_Q is not added
    self.W_Q + self.b_Q → self.W_Q
NoValueBias: b_V is not added
    self.W_V + self.b_V → self.W_V
MaskIgnored: the mask is ignored
    None if mask is None else mask.unsqueeze(-3) → None
MaskInverted: the mask is inverted: True is taken for forbidden
    else mask. → else ~mask.
MaskedAfter: forbidden weights are set to zero after the softmax
    masked_softmax(E, None → torch.softmax(E, dim=-1) * (1
NaNRows: a query that may attend to nothing gets NaN
    masked_softmax(E, None → torch.softmax(E
    mask.unsqueeze(-3)) → E.masked_fill(~mask.unsqueeze(-3), -torch.inf), dim=-1)
    says: yours is nan
NaNGradients: the weights of a row without a key are replaced, its gradients stay NaN
    masked_softmax(E, None → torch.softmax(E
    mask.unsqueeze(-3)) → E + mask.unsqueeze(-3).log(), dim=-1).nan_to_num(0)
    says: The gradient of X should be finite
OverQueries: the softmax runs over the queries instead of the keys
    masked_softmax(E, None → torch.softmax(E, dim=-2)
    else mask. → else masked_softmax(E, mask.
OverHeads: the softmax runs over the heads instead of the keys
    masked_softmax(E, None → torch.softmax(E, dim=1)
    else mask. → else masked_softmax(E, mask.
ViewOnly: heads are cut out of memory by a view without a transpose
    Q = split_heads( → Q = (split_heads := lambda X, H: X.reshape(len(X), H, X.shape[1], -1))(
    merge_heads(A @ V) → (A @ V).reshape(X.shape)
MergedByView: heads are merged by a view without a transpose
    merge_heads(A @ V) → (A @ V).reshape(X.shape)
DealtOut: features are dealt out to the heads like cards
    Q = split_heads( → Q = (split_heads := lambda X, H: X.unflatten(2, (-1, H)).movedim(3, 1))(
OneHead: there is one head: Q, K and V are not split
    self.b_Q, self.H → self.b_Q, 1
    self.b_K, self.H → self.b_K, 1
    self.b_V, self.H → self.b_V, 1
    return (Y, A) → return (Y, A.expand(-1, self.H, -1, -1))
Swapped: Q and K are mixed up
    Q @ K.mT → (K @ Q.mT if X is memory else Q @ K.mT)
ValuesAreKeys: the values are the keys: W_V is not used
    memory @ self.W_V + self.b_V → memory @ self.W_K + self.b_K
Averaged: the weights are averaged over the heads
    return (Y, A) → return (Y, A.mean(dim=1))
AlwaysWeights: the weights are returned even when not asked for
    if return_weights else Y →
    says: Y should be a tensor of shape
MemoryIgnored: the memory is ignored: X attends to itself
    if memory is None → if True
    says: raised RuntimeError: mat1 and mat2 shapes
""",
)

mistakes(
    attention_cost,
    """
twice: multiplications and additions are counted separately: twice as many
    2 * T * D**2 → 4 * T * D**2
    k * T * D**2 → 2 * k * T * D**2
    3 * T * D**2 + 2 * T**2 * D → 6 * T * D**2 + 4 * T**2 * D
no_recurrence: the RNN's product W_h h is left out
    2 * T * D**2 → T * D**2
short_rnn: the RNN's path counts as one application, as if its T steps were one
    "path_length": T} → "path_length": 1}
    says: path_length of rnn for T, D, k = 5, 3, 3 at [0] should be 5, yours is 1 (7 of 7
one_step_less: the RNN's path starts at h_1: the step that reads x_1 is left out
    "path_length": T} → "path_length": T - 1}
no_width: the convolution's width k is left out
    k * T * D**2 → T * D**2
depthwise: the convolution treats every feature separately: k T D
    k * T * D**2 → k * T * D
unpadded: the convolution does not pad: only T - k + 1 windows
    k * T * D**2 → k * max(T - k + 1, 0) * D**2
too_wide: a convolution is taken to reach k positions to each side
    (k // 2) → k
twice_as_wide: a convolution is taken to reach k - 1 positions to each side
    k // 2 → k - 1
rounded_down: the convolution's path length is rounded down
    math.ceil((T - 1) / (k // 2)) → (T - 1) // (k // 2)
* no_projections: the three projections are left out of self-attention's products
    3 * T * D**2 + →
scores_only: the product A V is not counted
    2 * T**2 * D → T**2 * D
* no_weights: the weights A are not counted as memory
    4 * T * D + T**2 → 4 * T * D
weights_alone: self-attention's memory holds A alone, without Q, K, V and Y
    4 * T * D + T**2 → T**2
mixed_up: T and D are mixed up
    T: int, D: int → D: int, T: int
""",
)

changed(
    attention_cost,
    "in_bytes",
    "memory is counted in bytes of float32 instead of entries",
    ('"memory": T * D, ', '"memory": 4 * T * D, '),
    ('"memory": T * D,\n', '"memory": 4 * T * D,\n'),
    ("4 * T * D + T**2", "4 * (4 * T * D + T**2)"),
)

mistakes(
    attention_cost,
    """
even_width: an even width is accepted
    k < 3 or k % 2 == 0 → k < 2
    says: should raise ValueError when k is 4
""",
)

same_axes = "axes 1 and 2 are exchanged either way"
reshaped = "return X.reshape(B, T, H, D // H)"
equivalent(split_heads, f"{reshaped}.transpose(1, 2) → {reshaped}.transpose(2, 1)", same_axes)
equivalent(
    split_heads,
    f"{reshaped}.transpose(1, 2) → {reshaped.replace('reshape', 'view')}.transpose(1, 2)",
    "an axis can be cut in two however it lies in memory",
)
equivalent(
    merge_heads,
    "return X.transpose(1, 2).flatten(2) → return X.transpose(2, 1).flatten(2)",
    same_axes,
)
equivalent(
    padding_mask,
    "return (torch.arange(T, device=lengths.device) < lengths[:, None])[:, None] → "
    "return (torch.arange(T) < lengths[:, None])[:, None]",
    "the checks run on a CPU, where both are the same",
)
equivalent(
    MultiHeadAttention,
    "K = split_heads(memory @ self.W_K + self.b_K, self.H) → "
    "K = split_heads(memory @ self.W_K - self.b_K, self.H)",
    "b_K adds the same number to all scores of a query, which the softmax removes again",
)
