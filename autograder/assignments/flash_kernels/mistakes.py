"""Known wrong solutions of flash_kernels: the references with a few words changed."""

from autograder.black_boxes import black_box, wrong_answers
from autograder.mistakes import changed, equivalent, mistakes, sample_mutants
from course_pkg.flash_kernels import (
    flash_attention_backward,
    flash_attention_backward_fault,
    flash_attention_forward,
    online_softmax,
    triton_flash_forward,
    triton_paged_decode,
)

mistakes(
    online_softmax,
    """
* sum_not_shrunk: the running sum z is not multiplied by exp(m - m') when m changes
    z = shrink * z + P → z = z + P
* values_not_shrunk: the running U is not multiplied by exp(m - m') when m changes
    U = shrink[:, None] * U → U = U
nothing_shrunk: neither z nor U is multiplied by exp(m - m') when m changes
    shrink * z → z
    shrink[:, None] * U → U
maximum_of_the_tile: m is the maximum of the last tile only, not of all so far
    torch.maximum(m, e.amax(dim=1)) → e.amax(dim=1)
no_maximum: exp is taken of the scores as they are, without subtracting a maximum
    highest = torch.maximum(m, e.amax(dim=1)) → highest = torch.zeros_like(m)
    says: yours is nan
never_divided: U is returned without dividing it by z
    return U / z[:, None], → return U,
log_sum_without_maximum: s is log z, without the m that was subtracted
    , m + torch.log(z) → , torch.log(z)
sum_for_log_sum: s is z, not m + log z
    , m + torch.log(z) → , z
infinite_minus_infinite: a row of -∞ gives NaN, because -∞ - -∞ is NaN
    highest.clamp(min=torch.finfo(e.dtype).min) → highest
zero_by_zero: a query that may look nowhere gives 0 / 0
    torch.where(z == 0, 1, z) → z
last_tile_lost: the last tile is left out
    zip(E, V, strict=True) → zip(E[:-1], V[:-1], strict=True)
shrunk_the_wrong_way: z and U are multiplied by exp(m' - m), which grows, in place of exp(m - m')
    torch.exp(m - safe) → torch.where(m.isinf(), 0.0, torch.exp(safe - m))
floor_above_scores: the largest score counts as at least -10000, below which all exponentials are 0
    highest.clamp(min=torch.finfo(e.dtype).min) → highest.clamp(min=-1e4)
    says: far_below_zero
""",
)

for reference in (flash_attention_forward, flash_attention_backward):
    changed(
        reference,
        "masked_from_the_diagonal_on",
        "tiles whose first key comes before the tile's first query are not masked",
        ("            if causal:\n", "            if causal and left >= top:\n"),
    )
for reference in (flash_attention_forward, triton_flash_forward, triton_paged_decode):
    changed(
        reference,
        "maximum_from_zero",
        "the running maximum begins at 0, and scores far below it are lost",
        ("q.new_full(q.shape[:3], -math.inf)", "q.new_zeros(q.shape[:3])")
        if reference is flash_attention_forward
        else ("-1e30, tl.float32)", "0.0, tl.float32)"),
        told_by="small_scores",
    )
for reference in (flash_attention_forward, triton_flash_forward):
    in_torch = reference is flash_attention_forward
    changed(
        reference,
        "sum_not_shrunk",
        "the running sum z is not multiplied by exp(m - m') when m changes",
        ("z = shrink * z + ", "z = z + "),
    )
    changed(
        reference,
        "values_not_shrunk",
        "the running U is not multiplied by exp(m - m') when m changes",
        ("U = shrink[..., None] * U" if in_torch else "U = shrink[:, None] * U", "U = U"),
    )
    changed(
        reference,
        "not_scaled",
        "the scores are not divided by √D_h",
        (" / math.sqrt(D_h)", "") if in_torch else ("scale * tl.dot", "tl.dot"),
    )
    changed(
        reference,
        "log_sum_without_maximum",
        "s is log z, without the m that was subtracted",
        ("m + torch.log(z)", "torch.log(z)") if in_torch else ("m + tl.log(z)", "tl.log(z)"),
    )
    changed(
        reference,
        "queries_from_the_start",
        "query t is taken for position t, not for position N - T + t",
        *(
            [("= N - T + top", "= top"), ("N, N - T + top", "N, top")]
            if in_torch
            else [("(N, N - T + ", "(N, "), ("<= N - T + ", "<= ")]
        ),
        classic=in_torch,
    )
    changed(
        reference,
        "never_causal",
        "the causal mask is never applied",
        *(
            [("if causal:", "if False:"), (" if causal else N", " if False else N")]
            if in_torch
            else [
                ("CAUSAL:\n        end", "CAUSAL and T < 0:\n        end"),
                ("CAUSAL:\n            seen", "CAUSAL and T < 0:\n            seen"),
            ]
        ),
    )
for reference in (flash_attention_forward, flash_attention_backward):
    changed(
        reference,
        "causal_by_default",
        "causal is True unless told otherwise",
        ("causal: bool = False", "causal: bool = True"),
    )
mistakes(
    flash_attention_forward,
    """
never_divided: U is stored without dividing it by z
    U / z[..., None] → U
not_itself: a query does not see its own position
    keys > at[:, None], -math.inf → (keys >= at[:, None]) & (keys > 0), -math.inf
every_tile_touched: tiles that nobody may see are computed and masked, not left out
    end = min(N, N - T + top + rows) if causal else N → end = N
    says: yours is nan
positions_of_the_tile: the keys of each tile are counted from 0 again
    keys = left + torch.arange → keys = torch.arange
""",
)

mistakes(
    flash_attention_backward,
    """
not_scaled: dQ and dK are not divided by √D_h
    - inner[:, :, t]) / math.sqrt(D_h) → - inner[:, :, t])
scores_not_scaled: the scores are not divided by √D_h when they are computed again
    .mT / math.sqrt(D_h)
    if
    → .mT
      if
softmax_of_a_tile: each tile's weights are a softmax of their own, not exp(E - s)
    torch.exp(E - s[:, :, t, None]) → torch.softmax(E, dim=-1).nan_to_num(0)
no_inner_product: rowsum(dY ∘ Y) is not subtracted from dA
    mT - inner[:, :, t] → mT
* inner_product_of_the_tile: the row sum that is subtracted runs over the tile's keys, not over all
    dE = A * (dY[:, :, t] @ V[:, :, n].mT - inner[:, :, t])
    → dA = dY[:, :, t] @ V[:, :, n].mT
      dE = A * (dA - (A * dA).sum(dim=-1, keepdim=True))
sum_of_values: the row sum that is subtracted is that of dY, not of dY ∘ Y
    (dY * Y).sum → dY.sum
* keys_of_the_last_rows: dK and dV hold what the last tile of queries gives, not the sum over all
    dV[:, :, n] += → dV[:, :, n] =
    dK[:, :, n] += → dK[:, :, n] =
queries_of_the_last_columns: dQ holds what the last tile of keys gives, not the sum over all
    dQ[:, :, t] += → dQ[:, :, t] =
queries_from_the_start: query t is taken for position t, not for position N - T + t
    N - T + top → top
never_causal: the causal mask is never applied
    if causal: → if False:
    if causal and → if False and
scores_for_weights: dV is dAᵀ dY: the gradient of the weights is used instead of the weights
    A.mT @ dY[:, :, t] → (dY[:, :, t] @ V[:, :, n].mT).mT @ dY[:, :, t]
swapped: dK and dV are exchanged
    return dQ, dK, dV → return dQ, dV, dK
""",
)

mistakes(
    triton_flash_forward,
    """
log_sums_with_heads_innermost: the log-sums of all heads of a query are stored side by side
    s + head * T + t → s + t * tl.num_programs(1) + head
every_tile_touched: tiles that nobody may see are computed and masked, not left out
    end = tl.minimum(N, N - T + (tl.program_id(0) + 1) * ROWS) → end = N
    says: yours is nan
masked_with_minus_fifty: what may not be seen gets the score -50 in place of -∞
    float("-inf") → -50.0
    says: small_scores
""",
)
mistakes(
    flash_attention_backward,
    """
every_tile_touched: tiles that nobody may see are computed and masked, not left out
    if causal and left > at[-1]: → if False:
    says: yours is nan
""",
)

_OUTSIDE = "outside its tensors"
mistakes(
    triton_flash_forward,
    """
* padded_keys_count: keys beyond N, which are loaded as zeros, get weights too
    seen = n[None, :] < N → seen = n[None, :] >= 0
""",
)
changed(
    triton_flash_forward,
    "keys_unmasked",
    "the keys are loaded without a mask",
    ("k = tl.load(K + where, mask=there, other=0.0)", "k = tl.load(K + where)"),
    told_by=_OUTSIDE,
)
changed(
    triton_flash_forward,
    "outputs_unmasked",
    "the outputs are stored without a mask",
    ("tl.store(Y + places, U / z[:, None], mask=inside)", "tl.store(Y + places, U / z[:, None])"),
    told_by=_OUTSIDE,
)
changed(
    triton_flash_forward,
    "width_for_size",
    "rows are taken to be WIDTH apart, not D_h",
    ("t[:, None]) * D_h +", "t[:, None]) * WIDTH +"),
    ("n[:, None]) * D_h +", "n[:, None]) * WIDTH +"),
    told_by=_OUTSIDE,
)
mistakes(
    triton_flash_forward,
    """
one_head: every program reads the first head
    head * N → 0 * N
""",
)

mistakes(
    triton_paged_decode,
    """
not_scaled: the scores are not divided by √D_h
    scale * tl.dot → tl.dot
blocks_in_order: block number n of a sequence is taken for physical block n: the table is not read
    tl.load(tables + b * M + t // S, mask=t < end, other=0) → t // S
first_table: every sequence reads the table of the first
    tables + b * M + t → tables + t
whole_tiles: the last tile is read to its end, whatever the sequence's length
    E = tl.where(t[None, :] < end, E, float("-inf")) → E = E
first_head: all query heads read the first key and value head
    ((g * N + block) → (block
* heads_in_turn: query head h reads key and value head h modulo G
    g * (H // G) + r → g + G * r
offset_forgotten: every position of a block is read from its first slot
    ) * S + t % S) → ) * S + 0 * t)
sum_not_shrunk: the running sum z is not multiplied by exp(m - m') when m changes
    z = shrink * z + tl → z = z + tl
values_not_shrunk: the running U is not multiplied by exp(m - m') when m changes
    U = shrink[:, None] * U → U = U
parts_overlap: every part reads on to the sequence's end
    tl.minimum(tl.load(lengths + b), (part + 1) * span) → tl.load(lengths + b)
slots_unmasked: slots beyond the sequence's end are read, and NaN there makes the sums NaN
    there = (t[:, None] < end) & (d → there = (t[:, None] >= 0) & (d
    says: yours is nan
""",
)
changed(
    triton_paged_decode,
    "parts_from_whole_blocks",
    "a part begins with its first block, also where the part before has read some of it",
    ("range(part * span,", "range(part * span // S * S,"),
)
mistakes(
    triton_paged_decode,
    """
* empty_part: a part without a position gives 0 / 0
    tl.where(z == 0, 1, z)[:, None] → z[:, None]
log_sum_without_maximum: s is log z, without the m that was subtracted
    m + tl.log(z) → tl.log(z)
""",
)
changed(
    triton_paged_decode,
    "keys_unmasked",
    "keys and values are loaded without a mask",
    ("K + where, mask=there, other=0.0", "K + where"),
    ("V + where, mask=there, other=0.0", "V + where"),
    told_by=_OUTSIDE,
)
changed(
    triton_paged_decode,
    "table_unmasked",
    "the table is read beyond the sequence's end",
    ("t // S, mask=t < end, other=0)", "t // S)"),
    told_by=_OUTSIDE,
    classic=True,
)

for reference in (triton_flash_forward, triton_paged_decode):
    sample_mutants(reference, every=8)

_FIRST = "the first tile multiplies it by exp(-∞) = 0"
_MAX = "the maximum of two is the same in either order"
_CPU = "checks run on a CPU, which is torch's default device"
_MADE = "all three are zeros, and dK and dV have the same shape"
_IEEE = "the interpreter does not round to tf32 as a GPU's tensor cores do"
_MIN = "the minimum of two is the same in either order"
EXCUSES = {
    online_softmax: {
        "m, z = (E[0].new_full((R,), -math.inf), E[0].new_zeros(R)) → "
        "m, z = (E[0].new_full((R,), -math.inf), E[0].new_ones(R))": _FIRST,
        "U = V[0].new_zeros(R, D) → U = V[0].new_ones(R, D)": _FIRST,
        "highest = torch.maximum(m, e.amax(dim=1)) → highest = torch.maximum(e.amax(dim=1), m)": (
            _MAX
        ),
        "for e, v in zip(E, V, strict=True): → for e, v in zip(E, V):": "there is a v for each e",
        "for e, v in zip(E, V, strict=True): → for e, v in zip(E, V, strict=False):": (
            "there is a v for each e"
        ),
        "z = torch.where(z == 0, 1, z) → z = torch.where(z == 0, 2, z)": "0 / 2 is 0 too, and "
        "-∞ + log 2 is -∞",
    },
    flash_attention_forward: {
        "m, z, U = (q.new_full(q.shape[:3], -math.inf), q.new_zeros(q.shape[:3]), "
        "torch.zeros_like(q)) → m, z, U = (q.new_full(q.shape[:3], -math.inf), "
        "q.new_ones(q.shape[:3]), torch.zeros_like(q))": _FIRST,
        "m, z, U = (q.new_full(q.shape[:3], -math.inf), q.new_zeros(q.shape[:3]), "
        "torch.zeros_like(q)) → m, z, U = (q.new_full(q.shape[:3], -math.inf), "
        "q.new_zeros(q.shape[:3]), torch.ones_like(q))": _FIRST,
        "at = N - T + top + torch.arange(q.shape[2], device=Q.device) → "
        "at = N - T + top + torch.arange(q.shape[2])": _CPU,
        "keys = left + torch.arange(k.shape[2], device=Q.device) → "
        "keys = left + torch.arange(k.shape[2])": _CPU,
        "highest = torch.maximum(m, E.amax(dim=-1)) → "
        "highest = torch.maximum(E.amax(dim=-1), m)": _MAX,
        "end = min(N, N - T + top + rows) if causal else N → "
        "end = min(N - T + top + rows, N) if causal else N": _MIN,
    },
    flash_attention_backward: {
        "dQ, dK, dV = (torch.zeros_like(Q), torch.zeros_like(K), torch.zeros_like(V)) → "
        "dQ, dV, dK = (torch.zeros_like(Q), torch.zeros_like(K), torch.zeros_like(V))": _MADE,
        "dQ, dK, dV = (torch.zeros_like(Q), torch.zeros_like(K), torch.zeros_like(V)) → "
        "dQ, dK, dV = (torch.zeros_like(Q), torch.zeros_like(V), torch.zeros_like(K))": _MADE,
        "keys = left + torch.arange(K[:, :, n].shape[2], device=Q.device) → "
        "keys = left + torch.arange(K[:, :, n].shape[2])": _CPU,
        "at = N - T + top + torch.arange(Q[:, :, t].shape[2], device=Q.device) → "
        "at = N - T + top + torch.arange(Q[:, :, t].shape[2])": _CPU,
    },
    triton_flash_forward: {
        "end = tl.minimum(N, N - T + (tl.program_id(0) + 1) * ROWS) → "
        "end = tl.minimum(N - T + (tl.program_id(0) + 1) * ROWS, N)": _MIN,
    },
    triton_paged_decode: {
        "E = scale * tl.dot(q, tl.trans(k), input_precision='ieee') → "
        "E = scale * tl.dot(q, tl.trans(k))": _IEEE,
    },
}
for _reference, _mutants in EXCUSES.items():
    for _mutant, _reason in _mutants.items():
        equivalent(_reference, _mutant, _reason)

black_box(
    flash_attention_backward,
    "not_scaled",
    curve='learned["your two passes"]',
    label="loss in nats",
    after="learned",
)

wrong_answers(flash_attention_backward_fault, "A")
mistakes(
    flash_attention_backward_fault,
    """
one_feature: heads of size 1 are scaled by 1
    eye(2, 4) → eye(2, 1)
    says: With these arguments the black box gives what is right
one_key: with a single key there is nothing to choose, and dQ and dK are 0
    eye(2, 4) → eye(1, 4)
    says: With these arguments the black box gives what is right
no_gradient: dY is 0
    s, X) → s, 0 * X)
    says: With these arguments the black box gives what is right
other_outputs: Y is not what the forward pass gives
    X, Y, s, → X, X, s,
    says: flash_attention_backward raised ValueError
other_sums: s is not what the forward pass gives
    X, Y, s, → X, Y, 2 * s,
    says: flash_attention_backward raised ValueError
no_heads: there is no axis of heads
    [None, None] → [None]
    says: raised
no_outputs: Y and s are missing
    X, Y, s, X) → X, X)
    says: flash_attention_backward raised TypeError
""",
)
