"""Known wrong solutions of positions."""

import torch

from autograder.black_boxes import black_box, wrong_answers
from autograder.mistakes import bug, changed, equivalent, mistakes
from course_pkg.positions import (
    LearnedPositions,
    RotaryAttention,
    interpolate_positions,
    linear_positions,
    rope_rotate,
    rope_rotate_fault,
    shaw_relative_attention,
    sinusoidal_positions,
)

mistakes(
    linear_positions,
    """
from_one: positions are counted from 1
    arange(T, → arange(1, T + 1,
    max(T - 1, 1) → T
features_numbered: the features are numbered instead of the positions
    arange(T, → arange(D,
    max(T - 1, 1) → max(D - 1, 1)
    t[:, None].repeat(1, D) → t.repeat(T, 1)
divided_by_T: the numbers are divided by T, so that they end before 1
    max(T - 1, 1) → T
always_normalised: the numbers are divided by T - 1 though normalise was not asked for
    if normalise: → if True:
never_normalised: normalise is ignored
    if normalise: → if False:
inverted: normalise means the opposite
    if normalise: → if not normalise:
centred: the numbers are centred, from -1 to 1
    t / max(T - 1, 1) → (2 * t - (T - 1)) / max(T - 1, 1)
shares: the numbers are divided by their sum
    max(T - 1, 1) → t.sum().clamp(min=1)
entries_numbered: every entry of the table gets a number of its own
    arange(T, → arange(T * D,
    max(T - 1, 1) → (T * D - 1)
    t[:, None].repeat(1, D) → t.view(T, D)
reversed_order: the last position comes first
    t[:, None] → t.flip(0)[:, None]
* zero_by_zero: a single position is divided by zero
    max(T - 1, 1) → (T - 1)
    says: P, normalised, at [0, 0] should be 0, yours is nan
integers: the numbers are integers
    , dtype=torch.get_default_dtype() →
    says: should hold real numbers, yours holds whole numbers
one_feature: one number for each position is returned, not one vector
    t[:, None].repeat(1, D) → t
    says: P should have shape
""",
)

mistakes(
    sinusoidal_positions,
    """
halves: all sines come before all cosines instead of alternating with them
    stack([angles.sin(), angles.cos()], dim=2).flatten(1) → cat([angles.sin(), angles.cos()], dim=1)
cosine_first: sine and cosine are exchanged
    [angles.sin(), angles.cos()] → [angles.cos(), angles.sin()]
* unpaired: each feature has a frequency of its own, instead of each pair
    arange(0, D, 2) → arange(D)
    torch.stack([angles.sin(), angles.cos()], dim=2).flatten(1)
    → torch.where(torch.arange(D) % 2 == 0, angles.sin(), angles.cos())
* slow_growth: the exponent is i/D instead of 2i/D
    arange(0, D, 2) → arange(D // 2)
fast_growth: the exponent is 4i/D: 2i is doubled again
    arange(0, D, 2) → arange(0, 2 * D, 4)
frequencies_grow: positions are multiplied by base^(2i/D) instead of divided
    (-torch → (torch
from_one: positions are counted from 1
    arange(T) → arange(1, T + 1)
fixed_base: the base is always 10000
    omega = base → omega = 10000.0
full_turns: the angles are multiplied by 2π
    * omega → * omega * 2 * math.pi
one_frequency: all pairs have the frequency of the first
    arange(0, D, 2) → zeros(D // 2)
inclusive: the exponents run to 1 inclusive: i / (D/2 - 1)
    (-torch.arange(0, D, 2) / D) → -torch.linspace(0, 1, D // 2)
accepts_odd: an odd D is accepted
    raise ValueError(f"D must be even, a sine and a cosine for each frequency, got {D}")
    → return sinusoidal_positions(T, D + 1, base)[:, :D]
    says: should raise ValueError when D is odd
""",
)

mistakes(
    LearnedPositions,
    """
LastRows: the last rows of the table are added instead of the first
    self.P[:T] → self.P[T_max - T :]
RowsBySequence: every sequence of the batch gets a row of the table, instead of every step
    self.P[:T] → self.P[torch.arange(len(X)) % T_max][:, None]
FirstRow: all positions get row 0
    self.P[:T] → self.P[0]
Shifted: the rows are shifted by one: position t gets row t-1, the first the last
    self.P[:T] → self.P.roll(1, dims=0)[:T]
TableOnly: the table is returned without X
    X + self.P[:T] → self.P[:T].expand_as(X)
Multiplied: X is multiplied by the table instead of added to it
    X + self → X * self
InPlace: X is changed in place
    return X + self.P[:T]
    → X.data.add_(self.P[:T])
      return X
OneTooShort: a sequence as long as the table is refused
    T > T_max → T >= T_max
    says: LearnedPositions raised ValueError: the table has
* StartsAgain: positions beyond the table start again at its first row
    raise ValueError(f"the table has {T_max} positions, the sequence {T}")
    → return X + self.P[torch.arange(T) % T_max]
    says: should raise ValueError when the sequence is longer than the table
* Unchecked: positions beyond the table give torch's error
    if T > T_max → if False
    says: should raise ValueError when the sequence is longer than the table
Detached: the table gets no gradient
    X + self.P[:T] → (X + self.P[:T]).detach()
    says: No gradient goes back
* Buffer: the table is not a parameter
    self.P = nn.Parameter(torch.randn(T_max, D)) → self.register_buffer("P", torch.randn(T_max, D))
    says: There should be a parameter called P, yours is missing.
Zeros: the table starts at zero
    randn → zeros
    says: P should have mean 0 and standard deviation 1, yours has 0.000 and 0.000.
""",
)

mistakes(
    shaw_relative_attention,
    """
* mirrored: the distance is i - j, so that left and right are exchanged
    t - t[:, None] → t[:, None] - t
mirrored_keys: R_K is read at i - j, though R_V is read at j - i
    R_K[r] → R_K[r.T]
mirrored_values: R_V is read at i - j, though R_K is read at j - i
    R_V[r] → R_V[r.T]
no_sign: only distances are told apart, not left from right
    clamp(-k, k) → abs().clamp(max=k)
wrapped: distances are taken modulo 2k+1 instead of clipped
    (t - t[:, None]).clamp(-k, k) + k → (t - t[:, None] + k) % (2 * k + 1)
not_shifted: k is not added: negative distances count from the table's end
    clamp(-k, k) + k → clamp(-k, k)
clipped_early: distances are clipped at k - 1, so that the outer rows are unused
    clamp(-k, k) → clamp(min(1 - k, 0), max(k - 1, 0))
by_position: R_K is added to the keys by their position, not by their distance
    (t - t[:, None]).clamp(-k, k) + k → t.clamp(max=2 * k).expand(T, -1)
keys_only: R_V is left out
    V + torch.einsum("...ij,ijd->...id", A, R_V[r]) → V
values_only: R_K is left out
    mT + torch.einsum("...id,ijd->...ij", Q, R_K[r]) → mT
unscaled: the scores are not divided by √D_Q
    E / math.sqrt(D_Q) → E
half_scaled: only Q Kᵀ is divided by √D_Q, not the part that comes from R_K
    Q @ K.mT + → Q @ K.mT / math.sqrt(D_Q) +
    E / math.sqrt(D_Q) → E
over_scaled: the scores are divided by D_Q instead of its root
    math.sqrt(D_Q) → D_Q
keys_with_table: R_K meets the keys instead of the queries
    "...id,ijd->...ij", Q → "...jd,ijd->...ij", K
mask_ignored: the mask is ignored
    math.sqrt(D_Q), mask) → math.sqrt(D_Q), None)
not_low_enough: forbidden scores are set to -1e4, which allowed ones may lie below
    A = masked_softmax(E / math.sqrt(D_Q), mask)
    → E = E / math.sqrt(D_Q)
      if mask is not None:
          E, mask = E.masked_fill(~mask, -1e4), mask.any(dim=-1, keepdim=True)
      A = masked_softmax(E, mask)
nan_gradients: the weights of a row without a key are replaced, its gradients stay NaN
    A = masked_softmax(E / math.sqrt(D_Q), mask)
    → if mask is not None:
          E = E + torch.where(mask, 0, -math.inf)
      A = torch.softmax(E / math.sqrt(D_Q), dim=-1).nan_to_num(0)
mask_unsqueezed: the mask gets an axis for the heads, though it comes in a shape that broadcasts
    math.sqrt(D_Q), mask) → math.sqrt(D_Q), None if mask is None else mask.unsqueeze(-3))
    says: A should have shape
mask_inverted: the mask is inverted
    math.sqrt(D_Q), mask) → math.sqrt(D_Q), None if mask is None else ~mask)
nan_rows: a row that may attend to nothing becomes NaN
    return A @ V
    → if mask is not None:
          A = A.masked_fill(~mask.any(dim=-1, keepdim=True), math.nan)
      return A @ V
    says: yours is nan
weights_first: A is returned before Y
    return A @ V → return A, A @ V
    R_V[r]), A → R_V[r])
    says: A should have shape
""",
)

mistakes(
    rope_rotate,
    """
* interleaved: neighbours 2i and 2i+1 are paired: that is the layout of the RoPE paper
    X.chunk(2, dim=-1) → X[..., ::2], X[..., 1::2]
    torch.cat( → torch.stack(
    dim=-1).to → dim=-1).flatten(-2).to
""",
)


@bug(
    rope_rotate,
    "the angles of a shape are kept for its later calls, whatever the base then",
    told_by="with the inputs of its first call without base",
)
def kept_angles(X, positions=None, base=10000.0, kept={}):  # noqa: B006  a dict that outlives the call is the mistake
    if positions is not None:
        return rope_rotate(X, positions, base)
    return rope_rotate(X, None, kept.setdefault(X.shape[-2:], base))


mistakes(
    rope_rotate,
    """
clockwise: the pairs turn the other way round
    = positions[:, None] → = -positions[:, None]
* no_minus: both sines have the same sign, which is no rotation
    x * cos - y * sin → x * cos + y * sin
own_half: the halves are not exchanged: x cos - x sin and y sin + y cos
    [x * cos - y * sin, x * sin + y * cos] → [x * cos - x * sin, y * sin + y * cos]
slow_growth: the exponent is i/D_h instead of 2i/D_h
    arange(0, D_h, 2, → arange(D_h // 2,
one_frequency: all pairs turn at the same speed
    arange(0, D_h, 2, → zeros(D_h // 2,
from_one: positions are counted from 1
    arange(T, → arange(1, T + 1,
positions_ignored: the given positions are ignored
    if positions is None → if True
fixed_base: the base is always 10000
    omega = base → omega = 10000.0
added: the sinusoidal encoding is added instead
    torch.cat([x * cos - y * sin, x * sin + y * cos], dim=-1) → (X + torch.cat([sin, cos], dim=-1))
""",
)


@bug(rope_rotate, "positions are taken from the first axis of X instead of the last but one")
def wrong_axis(X, positions=None, base=10000.0):
    if positions is None and X.dim() > 2:
        positions = torch.arange(len(X))
        return rope_rotate(X.transpose(0, -2), positions, base).transpose(0, -2)
    return rope_rotate(X, positions, base)


mistakes(
    rope_rotate,
    """
coarse: the angles are computed in the type of X, too coarse in bfloat16
    positions[:, None] * omega → positions.to(X.dtype)[:, None] * omega.to(X.dtype)
    says: half_precision: keeps the type of its input
accepts_odd: an odd D_h is accepted
    raise ValueError(f"the features must come in pairs, got {D_h} of them")
    → return nn.functional.pad(rope_rotate(X[..., :-1], positions, base), (0, 1))
    says: should raise ValueError when D_h is odd
""",
)

black_box(
    rope_rotate,
    "clockwise",
    curve="""(
        torch.manual_seed(seed),
        train.fit(
            Network(attention=RotaryAttention).to(device),
            lambda generator: symbol_back(32 * scale, LENGTH, generator),
            lambda model, x, y: functional.cross_entropy(model(x).flatten(0, 1), y.flatten()),
            steps=300,
            lr=0.003,
            clip=1.0,
            seed=seed,
        ).losses,
    )[1]""",
    after="attention=RotaryAttention",
    label="loss, nats for each symbol",
)

wrong_answers(rope_rotate_fault, "A")
mistakes(
    rope_rotate_fault,
    """
position_0: there is one position, at which nothing turns
    [[1.0, 0.0], [1.0, 0.0]] → [[1.0, 0.0]]
    says: With these arguments the black box gives what is right
zeros: all vectors are 0
    [[1.0, 0.0], [1.0, 0.0]] → [[0.0, 0.0], [0.0, 0.0]]
    says: With these arguments the black box gives what is right
stands_still: all positions are 0
    (X,) → (X, torch.zeros(2))
    says: With these arguments the black box gives what is right
half_turn: half a turn is the same in both directions
    (X,) → (X, torch.tensor([0.0, torch.pi]))
    says: With these arguments the black box gives what is right
three_features: three features are no pairs
    [[1.0, 0.0], [1.0, 0.0]] → [[1.0, 0.0, 0.0], [1.0, 0.0, 0.0]]
    says: The black box raised ValueError
too_many_positions: there are three positions for two vectors
    (X,) → (X, torch.arange(3))
    says: rope_rotate raised
no_tuple: X stands in place of the tuple
    "A", (X,) → "A", X
    says: The arguments should be a tuple
""",
)

mistakes(
    RotaryAttention,
    """
NotLowEnough: forbidden scores are set to -1e4, which allowed ones may lie below
    A = masked_softmax(
    → if mask is not None:
          E = E.masked_fill(~mask.unsqueeze(-3), -1e4)
          mask = mask.any(dim=-1, keepdim=True)
      A = masked_softmax(
NaNGradients: the weights of a row without a key are replaced, its gradients stay NaN
    A = masked_softmax(E, None if mask is None else mask.unsqueeze(-3))
    → if mask is not None:
          E = E + torch.where(mask.unsqueeze(-3), 0, -math.inf)
      A = torch.softmax(E, dim=-1).nan_to_num(0)
    says: The gradient of X should be finite
EvenRows: a position that may attend to nothing gets equal weights, not zeros
    A = masked_softmax(E, None if mask is None else mask.unsqueeze(-3))
    → if mask is not None:
          E = E.masked_fill(~mask.unsqueeze(-3), torch.finfo(E.dtype).min)
      A = torch.softmax(E, dim=-1)
Unturned: nothing is turned, or everything by the same angle, whatever its position
    rope_rotate(Q, base=self.base), rope_rotate(K, base=self.base) → Q, K
QueriesOnly: only the queries are turned
    rope_rotate(K, base=self.base) → K
KeysOnly: only the keys are turned
    rope_rotate(Q, base=self.base) → Q
* ValuesToo: the values are also turned
    E = Q @
    → V = rope_rotate(V, base=self.base)
      E = Q @
InputsTurned: X is turned before the projections instead of queries and keys
    Q, K, V = (
    → X = rope_rotate(X, base=self.base)
      Q, K, V = (
    rope_rotate(Q, base=self.base), rope_rotate(K, base=self.base) → Q, K
BeforeSplitting: all features are turned at once, before they are split into heads
    rope_rotate(Q, base=self.base), rope_rotate(K, base=self.base)
    → (
          split_heads(rope_rotate(merge_heads(Z), base=self.base), self.H) for Z in (Q, K)
      )
TurnedByHead: nothing is turned, or everything by the same angle, whatever its position
    rope_rotate(Q, base=self.base), rope_rotate(K, base=self.base)
    → (
          rope_rotate(Z.transpose(1, 2), base=self.base).transpose(1, 2) for Z in (Q, K)
      )
Unscaled: the scores are not divided by √D_h
    mT / math.sqrt(Q.shape[-1]) → mT
ScaledByD: the scores are divided by √D instead of √D_h
    Q.shape[-1] → X.shape[-1]
FixedBase: the base is always 10000
    rope_rotate(Q, base=self.base), rope_rotate(K, base=self.base) → rope_rotate(Q), rope_rotate(K)
NoOutputProduct: W_O is left out
    ) @ self.W_O → )
Viewed: the heads are joined by a view, without a transpose
    merge_heads(heads) → heads.reshape(X.shape)
MaskIgnored: the mask is ignored
    None if mask is None else mask.unsqueeze(-3) → None
MaskInverted: the mask is inverted
    else mask → else ~mask
AveragedWeights: the weights are averaged over the heads
    (Y, A) if → (Y, A.mean(dim=1)) if
    says: A should have shape
""",
)

mistakes(
    interpolate_positions,
    """
corners: the ends of the old and the new table are aligned, not the cells
    ((t + 0.5) * T / T_new - 0.5).clamp(min=0) → t * (T - 1) / max(T_new - 1, 1)
nearest: the nearest old position is taken instead of a blend of two
    ((t + 0.5) * T / T_new - 0.5).clamp(min=0) → (t * T / T_new).floor()
* no_half_cell: the half cell is forgotten: u = t T / T'
    ((t + 0.5) * T / T_new - 0.5).clamp(min=0) → t * T / T_new
half_added: half a cell is added, but not subtracted again
    T_new - 0.5) → T_new)
exchanged: the weights of the left and the right neighbour are exchanged
    (1 - w) * P.index_select(axis, left) + w * → w * P.index_select(axis, left) + (1 - w) *
extrapolated: positions before the first and after the last are extrapolated
    .clamp(min=0) →
    u.long() → u.floor().long().clamp(0, max(T - 2, 0))
""",
)


@bug(interpolate_positions, "the new positions are filled with zeros")
def padded(P, size):
    if len(size) != P.dim() - 1:
        raise ValueError("size does not fit")
    new = P.new_zeros(*size, P.shape[-1])
    common = tuple(slice(min(a, b)) for a, b in zip(P.shape, size, strict=False))
    new[common] = P[common]
    return new


mistakes(
    interpolate_positions,
    """
tiled: the old table is repeated to fill the new one
    (1 - w) * P.index_select(axis, left) + w * P.index_select(axis, right)
    → P.index_select(axis, torch.arange(T_new) % T)
""",
)

changed(
    interpolate_positions,
    "flattened",
    "a grid is stretched as one long line, across the ends of its rows",
    (
        "    for axis",
        "    grid, P, size = size, P.flatten(0, -2), (math.prod(size),)\n    for axis",
    ),
    ("    return P\n", "    return P.unflatten(0, grid)\n"),
    classic=True,
)

mistakes(
    interpolate_positions,
    """
first_axis_only: only the first axis of a grid is stretched
    enumerate(size) → enumerate(size[:1])
    says: should have shape
""",
)

changed(
    interpolate_positions,
    "detached",
    "the table gets no gradient",
    ("    return P\n", "    return P.detach()\n"),
    told_by="No gradient goes back",
)

mistakes(
    interpolate_positions,
    """
unchecked: sizes that do not fit are accepted
    len(size) != → len(size) >
    says: should raise ValueError when a grid gets one size
""",
)


ON_CPU = "checks run on the CPU, where new tensors are made anyway"
equivalent(
    linear_positions,
    "t = t / max(T - 1, 1) → t = t / max(1, T - 1)",
    "a maximum does not depend on the order",
)
equivalent(
    shaw_relative_attention,
    "t = torch.arange(T, device=Q.device) → t = torch.arange(T)",
    ON_CPU,
)
equivalent(
    rope_rotate,
    "positions = torch.arange(T, device=X.device) → positions = torch.arange(T)",
    ON_CPU,
)
equivalent(
    rope_rotate,
    "omega = base ** (-torch.arange(0, D_h, 2, dtype=precise, device=X.device) / D_h) → "
    "omega = base ** (-torch.arange(0, D_h, 2, dtype=precise) / D_h)",
    ON_CPU,
)
equivalent(
    rope_rotate,
    "precise = torch.promote_types(X.dtype, torch.float32) → "
    "precise = torch.promote_types(torch.float32, X.dtype)",
    "promotion is symmetric",
)
equivalent(
    interpolate_positions,
    "t = torch.arange(T_new, dtype=P.dtype, device=P.device) → "
    "t = torch.arange(T_new, dtype=P.dtype)",
    ON_CPU,
)
