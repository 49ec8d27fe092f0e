"""Hidden checks of linear_attention: gradients, extremes, equal sizes, and what is kept."""

import math

import torch

from course_pkg.checking.registry import check
from course_pkg.checks.linear_attention import (
    BACK,
    FEW,
    GATED,
    KEPT,
    RULES,
    RUN,
    SCAN,
    STEP,
    allowed,
    attended,
    chunk_inputs,
    convolved,
    decayed,
    decoder,
    delta_inputs,
    demand_attended,
    demand_bytes,
    demand_convolved,
    demand_layer,
    demand_mixed,
    demand_run,
    demand_scores,
    demand_states,
    demand_step,
    demand_sums,
    equation,
    faded,
    flow,
    in_chunks,
    memorised,
    mixed,
    mixer,
    phi,
    recurred,
    replaced,
    rwkv_inputs,
    scanned,
    scored,
    selected,
    small_taps,
    space,
    stepped,
    triple,
)
from course_pkg.linear_attention import (
    HybridDecoder,
    TokenMixer,
    chunked_scan,
    delta_rule,
    discretise,
    gated_recurrence,
    linear_attention,
    parallel_scan,
    recurrent_linear_attention,
    rwkv_time_mixing,
    selective_state_space,
    short_convolution,
    state_bytes,
)


@check(linear_attention, see="A kernel in place of the softmax")
def square(attend, case):
    """keeps steps and features apart when T = D = D_V"""
    B, H, T = case.sizes(3, low=3)
    inputs = triple(case, B, H, T, T, T)
    demand_attended(case, attend(*inputs), inputs, "Y for T = D = D_V")


@check(linear_attention, see="A kernel in place of the softmax")
def large(attend, case):
    """agrees for queries and keys of 100 and more"""
    Q, K, V = triple(case, *case.sizes(5))
    expected = attended(100 * Q, 100 * K, V, normalised=False)
    Y = attend(100 * Q, 100 * K, V, normalised=False)
    case.shape(Y, tuple(V.shape), "Y")
    what = "Y / 100 000 for queries and keys of 100 and more"
    case.equal(Y / 1e5, expected / 1e5, what)


@check(recurrent_linear_attention, see="The same as a recurrent network")
def gradients(attend, case):
    """passes gradients to queries, keys, values and the state"""
    B, H, T, D, D_V = case.sizes(5)
    past = [case.randn(B, H, 3, D), case.randn(B, H, 3, D_V)]
    inputs = [*triple(case, B, H, T, D, D_V), *memorised(*past)]

    def call(Q, K, V, S, z):
        return attend(Q, K, V, (S, z))

    def oracle(Q, K, V, S, z):
        own_S, own_z = memorised(K, V)
        Q, K = phi(Q), phi(K)
        A = torch.einsum("bhti,bhsi->bhts", Q, K).tril()
        top = torch.einsum("bhti,bhij->bhtj", Q, S) + torch.einsum("bhts,bhsj->bhtj", A, V)
        bottom = torch.einsum("bhti,bhi->bht", Q, z) + A.sum(dim=-1)
        return top / bottom[..., None], (S + own_S, z + own_z)

    flow(case, call, oracle, inputs, "Q K V S z", ("Y", "(S, z)"))


@check(recurrent_linear_attention, see="The same as a recurrent network")
def step_by_step(attend, case):
    """gives the same when every step is a call of its own"""
    B, H, T, D, D_V = case.sizes(5)
    Q, K, V = triple(case, B, H, T, D, D_V)
    state = None
    for t in range(T):
        step = (part[:, :, t : t + 1] for part in (Q, K, V))
        past = (part[:, :, : t + 1] for part in (Q, K, V))
        y, state = case.unpack(attend(*step, state), "Y", "(S, z)")
        case.equal(y, allowed(y, *past, last=1), f"y_{t + 1}, in a call of its own,")


@check(recurrent_linear_attention, see="The same as a recurrent network")
def square(attend, case):
    """keeps rows and columns apart when D = D_V = T"""
    B, H, T = case.sizes(3, low=3)
    inputs = triple(case, B, H, T, T, T)
    demand_sums(case, attend(*inputs), inputs)


@check(delta_rule, see="Write the difference")
def gradients(write, case):
    """passes gradients to all inputs and to the state"""
    B, H, T, D, D_V = case.sizes(5)
    inputs = [*delta_inputs(case, B, H, T, D, D_V), 0.02 * case.randn(B, H, D, D_V)]
    flow(case, write, replaced, inputs, "Q K V beta S")


@check(delta_rule, see="Write the difference")
def square(write, case):
    """keeps rows and columns apart when D = D_V = T, and goes on by a single step"""
    B, H, T = case.sizes(3, low=3)
    given, S = delta_inputs(case, B, H, T, T, T), 0.02 * case.randn(B, H, T, T)
    demand_run(case, write(*given, S), replaced(*given, S))
    one = [part[:, :, :1] for part in given]
    demand_run(case, write(*one, S), replaced(*one, S))


@check(delta_rule, see="Write the difference")
def other_keys(write, case):
    """leaves alone what is held under orthogonal keys"""
    B, H, D, D_V = case.sizes(4)
    keys = torch.eye(D, dtype=torch.float64).expand(B, H, D, D)
    V, ones = case.randn(B, H, D, D_V), torch.ones(B, H, D, dtype=torch.float64)
    _, S = case.unpack(write(keys, keys, V, ones), *RUN)
    case.equal(S, V, "S after one write under each of D orthogonal keys")


@check(gated_recurrence, see="One line for all gates")
def gradients(run, case):
    """passes gradients to all inputs, the decay and the state"""
    B, H, T, D, D_V = case.sizes(5)
    inputs = [
        *triple(case, B, H, T, D, D_V),
        case.rand(B, H, T, D),
        0.02 * case.randn(B, H, D, D_V),
    ]
    flow(case, run, decayed, inputs, "Q K V decay S")


@check(gated_recurrence, see="One line for all gates")
def square(run, case):
    """applies γ to S's rows, not its columns, when D = D_V = T, and goes on by a single step"""
    B, H, T = case.sizes(3, low=3)
    given = [*triple(case, B, H, T, T, T), case.rand(B, H, T, T), 0.02 * case.randn(B, H, T, T)]
    demand_run(case, run(*given), decayed(*given))
    one = [*(part[:, :, :1] for part in given[:4]), given[4]]
    demand_run(case, run(*one), decayed(*one))


@check(gated_recurrence, see="One line for all gates")
def remembers_all(run, case):
    """adds up everything when γ = 1"""
    B, H, T, D, D_V = case.sizes(5)
    Q, K, V = triple(case, B, H, T, D, D_V)
    Y = torch.einsum("bhti,bhsi->bhts", Q, K).tril() @ V
    S = torch.einsum("bhti,bhtj->bhij", K, V)
    demand_run(case, run(Q, K, V, torch.ones(D, dtype=V.dtype)), (Y, S))


@check(gated_recurrence, see="One line for all gates")
def cell(run, case):
    """is an LSTM's cell when every cell is a head with D = D_V = 1"""
    B, H, T = case.sizes(3)
    i, f, g = (case.rand(B, H, T, 1) for _ in range(3))
    c, cells = torch.zeros(B, H, dtype=i.dtype), []
    for t in range(T):
        c = f[:, :, t, 0] * c + i[:, :, t, 0] * g[:, :, t, 0]
        cells.append(c)
    demand_run(
        case,
        run(torch.ones_like(i), i, g, f),
        (torch.stack(cells, dim=2)[..., None], c[..., None, None]),
    )


@check(discretise, see="From an equation to steps")
def gradients(step, case):
    """passes gradients to Δ, A and k, exact or not"""
    for exact in (True, False):
        inputs = equation(case, *case.sizes(4))

        def call(delta, A, K, exact=exact):
            return step(delta, A, K, exact=exact)

        def oracle(delta, A, K, exact=exact):
            return stepped(delta, A, K, exact)

        flow(case, call, oracle, inputs, "delta A K", STEP)


@check(discretise, see="From an equation to steps")
def square(step, case):
    """keeps steps, channels and numbers apart when T = D = N"""
    B, T = case.sizes(2, low=3)
    given = equation(case, B, T, T, T)
    demand_step(case, step(*given), stepped(*given))


@check(discretise, see="From an equation to steps")
def settles(step, case):
    """gives Ā = 0 and K̄ = -k / A after a very long step"""
    B, T, D, N = case.sizes(4)
    delta, A, K = equation(case, B, T, D, N)
    write = -K[:, :, None] / A
    demand_step(case, step(delta + 1e4, A, K), (torch.zeros_like(write), write.expand(B, T, D, N)))


@check(discretise, see="From an equation to steps")
def slow_or_fast(step, case):
    """keeps its digits from Δ A near 1e-12 to Δ A near one"""
    delta, A, K = equation(case, *case.sizes(4))
    for power in range(-12, 1):
        slow = A * 10.0**power
        rate = delta[..., None] * slow
        terms = torch.stack([rate**n / math.factorial(n + 1) for n in range(20)])
        write = delta[..., None] * terms.sum(dim=0) * K[:, :, None]
        found = case.unpack(step(delta, slow, K), *STEP)[1]
        case.equal(found, write, f"K̄ where A is near 1e{power}")


@check(selective_state_space, see="Select what to remember")
def gradients(run, case):
    """passes gradients to all inputs, the weights and the state"""
    B, T, D, N = case.sizes(4)
    inputs = [*space(case, B, T, D, N), 0.05 * case.randn(B, D, N)]
    flow(case, run, selected, inputs, "X delta A K Q skip h", ("Y", "h"))


@check(selective_state_space, see="Select what to remember")
def square(run, case):
    """keeps steps, channels and numbers apart when T = D = N"""
    B, T = case.sizes(2, low=3)
    given, h = space(case, B, T, T, T), 0.05 * case.randn(B, T, T)
    demand_states(case, run(*given, h), selected(*given, h))


@check(selective_state_space, see="Select what to remember")
def step_by_step(run, case):
    """gives the same when every step is a call of its own"""
    B, T, D, N = case.sizes(4)
    X, delta, A, K, Q, skip = space(case, B, T, D, N)
    expected, _ = selected(X, delta, A, K, Q, skip)
    h = None
    for t in range(T):
        x, length, k, q = (part[:, t : t + 1] for part in (X, delta, K, Q))
        y, h = case.unpack(run(x, length, A, k, q, skip, h), "Y", "h")
        case.equal(y, expected[:, t : t + 1], f"y_{t + 1}, in a call of its own,")


@check(parallel_scan, see="All steps at once")
def gradients(scan, case):
    """passes gradients to what remains and to what is added"""
    B, T, D = case.sizes(3, low=4)
    flow(case, scan, scanned, [case.rand(B, T, D), case.randn(B, T, D)], "a b")


@check(parallel_scan, see="All steps at once")
def long(scan, case):
    """agrees over 300 steps, some of which keep almost nothing"""
    B, D = case.sizes(2)
    a, b = case.rand(B, 300, D), case.randn(B, 300, D)
    a[:, ::7] *= 1e-30
    case.equal(scan(a, b), scanned(a, b), "h over 300 steps")


@check(parallel_scan, see="All steps at once")
def any_number(scan, case):
    """takes numbers below zero and above one as well"""
    B, T, D = case.sizes(3, low=5)
    a, b = 1.5 * case.randn(B, T, D), case.randn(B, T, D)
    case.equal(scan(a, b), scanned(a, b), "h")


@check(chunked_scan, see=SCAN)
def gradients(scan, case):
    """passes gradients to all inputs, the decay and the state"""
    B, H, D, D_V = case.sizes(4)
    inputs = [*chunk_inputs(case, B, H, 7, D, D_V), 0.02 * case.randn(B, H, D, D_V)]

    def oracle(Q, K, V, log_decay, S):
        return decayed(Q, K, V, log_decay.exp()[..., None], S)

    flow(case, lambda *given: scan(*given, chunk=3), oracle, inputs, "Q K V log_decay S")


@check(chunked_scan, see=SCAN)
def square(scan, case):
    """keeps axes apart when C = D = D_V"""
    B, H = case.sizes(2)
    given, S = chunk_inputs(case, B, H, 12, 4, 4), 0.02 * case.randn(B, H, 4, 4)
    in_chunks(case, scan, given, S, 4)


@check(chunked_scan, see=SCAN)
def usual_chunk(scan, case):
    """works when no size of chunk is given"""
    given = chunk_inputs(case, 2, 3, 35, 4, 5)
    demand_run(case, scan(*given), decayed(*given[:3], given[3].exp()[..., None]))


@check(chunked_scan, see=SCAN)
def negative(scan, case):
    """raises ValueError when chunk is negative"""
    given = chunk_inputs(case, *case.sizes(5))
    case.raises(ValueError, lambda: scan(*given, chunk=-2), "chunk is -2")


@check(rwkv_time_mixing, see="One of the family")
def gradients(mix, case):
    """passes gradients to all inputs, the weights and the state"""
    B, T, D = case.sizes(3)
    inputs = [*rwkv_inputs(case, B, T, D), case.randn(B, D), case.randn(B, D)]

    def call(*given):
        return mix(*given[:5], given[5:])

    def oracle(*given):
        return faded(*given[:5], given[5:])

    flow(case, call, oracle, inputs, "R K V w u mean log_weight", ("Y", "state"))


@check(rwkv_time_mixing, see="One of the family")
def gradients_at_first(mix, case):
    """passes finite gradients when there is no state"""
    inputs = rwkv_inputs(case, *case.sizes(3))
    flow(case, mix, faded, inputs, "R K V w u", ("Y", "state"))


@check(rwkv_time_mixing, see="One of the family")
def small_keys(mix, case):
    """gives the same when all keys are smaller by 2 000"""
    R, K, V, w, u = rwkv_inputs(case, *case.sizes(3))
    expected, (mean, log_weight) = faded(R, K, V, w, u)
    demand_mixed(case, mix(R, K - 2000, V, w, u), (expected, (mean, log_weight - 2000)))


@check(rwkv_time_mixing, see="One of the family")
def square(mix, case):
    """keeps sequences, steps and channels apart when B = T = D, and goes on by a single step"""
    (T,) = case.sizes(1, low=3)
    given, state = rwkv_inputs(case, T, T, T), (case.randn(T, T), case.randn(T, T))
    demand_mixed(case, mix(*given, state), faded(*given, state))
    one = [*(part[:, :1] for part in given[:3]), *given[3:]]
    demand_mixed(case, mix(*one, state), faded(*one, state))


@check(rwkv_time_mixing, see="One of the family")
def keys_far_apart(mix, case):
    """gives the last value alone where each key is 900 larger than the one before"""
    B, T, D = case.sizes(3)
    R, K, V, w, u = rwkv_inputs(case, B, T, D)
    K = K + 900 * torch.arange(T)[:, None]
    Y, _ = case.unpack(mix(R, K, V, w, u), "Y", "state")
    case.equal(Y, torch.sigmoid(R) * V, "Y where each key is 900 larger than the one before")


@check(short_convolution, see=BACK)
def gradients(convolve, case):
    """passes gradients to the inputs, the taps and the inputs before"""
    B, T, D, W = case.sizes(4)
    inputs = [case.randn(B, T, D), small_taps(case, D, W), case.randn(B, W - 1, D)]
    flow(case, convolve, convolved, inputs, "X taps past", ("Y", "past"))


@check(short_convolution, see=BACK)
def square(convolve, case):
    """keeps axes apart when T = D = W, and goes on by a single step"""
    B, T = case.sizes(2, low=3)
    X, taps, past = case.randn(B, T, T), small_taps(case, T, T), case.randn(B, T - 1, T)
    for part in (X, X[:, :1]):
        demand_convolved(case, convolve(part, taps, past), convolved(part, taps, past))


@check(TokenMixer, see=RULES)
def recurs(student, case):
    """applies the rules in `recur`, from a state that is given"""
    for rule in ("add", "decay", "select", "delta"):
        B, T, D_h, H = case.sizes(4)
        ours, weights = mixer(case, student, D_h * H, H, rule)
        Q, K, V, S = *(case.randn(B, H, T, D_h) for _ in range(3)), case.randn(B, H, D_h, D_h)
        gate = case.randn(B, H, T) if rule in GATED else None
        demand_run(case, ours.recur(Q, K, V, gate, S), recurred(weights, rule, Q, K, V, gate, S))


@check(TokenMixer, see=RULES)
def long(student, case):
    """gives the same over more steps than a chunk has"""
    for rule in ("add", "select"):
        ours, weights = mixer(case, student, 4, 2, rule)
        X = case.randn(2, 21, 4)
        demand_layer(case, ours(X), mixed(weights, rule, X, 2))


@check(TokenMixer, see=RULES)
def widths(student, case):
    """has as many taps as it is given, four when none are"""
    B, T, D_h, H = case.sizes(4)
    ours, weights = mixer(case, student, D_h * H, H, "softmax", 1)
    X = case.randn(B, T, D_h * H)
    demand_layer(case, ours(X), mixed(weights, "softmax", X, H))
    taps = student(6, 2, "delta").state_dict().get("taps")
    case.shape(taps, (18, 4), "taps of a new layer")


@check(HybridDecoder, see=FEW)
def token_by_token(student, case):
    """gives the logits of the whole text when every token is a call of its own"""
    ours, state = decoder(case, student, 2, "select", 2)
    tokens = case.integers(0, 11, 3, 5)
    expected, _ = scored(state, 2, "select", 2, tokens)
    states = None
    for t in range(5):
        logits, states = case.unpack(ours(tokens[:, t : t + 1], states), "logits", "states")
        case.equal(logits, expected[:, t : t + 1], f"logits of token {t}, in a call of its own,")


@check(HybridDecoder, see=FEW)
def other_rules(student, case):
    """has the recurrent layers that are asked for"""
    for rule in ("add", "decay"):
        ours, state = decoder(case, student, 2, rule, None)
        tokens = case.integers(0, 11, 2, 3)
        demand_scores(case, ours(tokens), scored(state, 2, rule, None, tokens))


@check(HybridDecoder, see=FEW)
def all_attention(student, case):
    """is a transformer when every layer is attention"""
    ours, state = decoder(case, student, 2, "select", 1)
    tokens = case.integers(0, 11, 2, 4)
    demand_scores(case, ours(tokens), scored(state, 2, "select", 1, tokens))


OTHERS = (
    {"T": 11, "D": 6, "H": 2, "L": 7, "every": 7},
    {"T": 2, "D": 15, "H": 3, "L": 2, "every": 3},
    {"T": 1, "D": 9, "H": 9, "L": 5, "every": 2, "width": 3},
    {"T": 8, "D": 4, "H": 2, "L": 6, "every": 1, "size": 8},
    {"T": 13, "D": 14, "H": 7, "L": 9, "every": 4, "width": 6, "size": 1},
    {"T": 10**7, "D": 64, "H": 4, "L": 1},
)


@check(state_bytes, see=KEPT)
def other_states(count, case):
    """counts the state of other decoders"""
    demand_bytes(case, count, "state", OTHERS)


@check(state_bytes, see=KEPT)
def other_caches(count, case):
    """counts the cache of other decoders"""
    demand_bytes(case, count, "cache", OTHERS)


@check(state_bytes, see=KEPT)
def more_heads(count, case):
    """raises ValueError when there are more heads than features"""
    case.raises(ValueError, lambda: count(3, 4, 8, 2), "D = 4 and H = 8")
