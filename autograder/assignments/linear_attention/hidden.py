"""Hidden checks of linear_attention: equal sizes, gradients, single steps, other settings."""

import torch

from course_pkg.checking.black_box import demand_named
from course_pkg.checking.registry import check
from course_pkg.checks import linear_attention as visible
from course_pkg.linear_attention import (
    HybridDecoder,
    TokenMixer,
    chunked_scan,
    chunked_scan_fault,
    delta_rule,
    discretise,
    gated_recurrence,
    linear_attention,
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
    inputs = visible.triple(case, B, H, T, T, T)
    visible.demand_attended(case, attend(*inputs), inputs, "Y for T = D = D_V")


@check(recurrent_linear_attention, see="The same as a recurrent network")
def square(attend, case):
    """keeps rows and columns apart when D = D_V = T"""
    B, H, T = case.sizes(3, low=3)
    inputs = visible.triple(case, B, H, T, T, T)
    visible.demand_sums(case, attend(*inputs), inputs)


@check(delta_rule, see="Write the difference")
def square(write, case):
    """keeps rows and columns apart when D = D_V = T, and goes on by a single step"""
    B, H, T = case.sizes(3, low=3)
    given, S = visible.delta_inputs(case, B, H, T, T, T), 0.02 * case.randn(B, H, T, T)
    visible.demand_run(case, write(*given, S), visible.replaced(*given, S))
    one = [part[:, :, :1] for part in given]
    visible.demand_run(case, write(*one, S), visible.replaced(*one, S))


@check(delta_rule, see="Write the difference")
def other_keys(write, case):
    """leaves alone what is held under orthogonal keys"""
    B, H, D, D_V = case.sizes(4)
    keys = torch.eye(D, dtype=torch.float64).expand(B, H, D, D)
    V, ones = case.randn(B, H, D, D_V), torch.ones(B, H, D, dtype=torch.float64)
    _, S = case.unpack(write(keys, keys, V, ones), *visible.RUN)
    case.equal(S, V, "S after one write under each of D orthogonal keys")


@check(gated_recurrence, see="One line for all gates")
def square(run, case):
    """applies γ to S's rows, not its columns, when D = D_V = T, and goes on by a single step"""
    B, H, T = case.sizes(3, low=3)
    given = [
        *visible.triple(case, B, H, T, T, T),
        case.rand(B, H, T, T),
        0.02 * case.randn(B, H, T, T),
    ]
    visible.demand_run(case, run(*given), visible.decayed(*given))
    one = [*(part[:, :, :1] for part in given[:4]), given[4]]
    visible.demand_run(case, run(*one), visible.decayed(*one))


@check(gated_recurrence, see="One line for all gates")
def remembers_all(run, case):
    """adds up everything when γ = 1"""
    B, H, T, D, D_V = case.sizes(5)
    Q, K, V = visible.triple(case, B, H, T, D, D_V)
    Y = torch.einsum("bhti,bhsi->bhts", Q, K).tril() @ V
    S = torch.einsum("bhti,bhtj->bhij", K, V)
    visible.demand_run(case, run(Q, K, V, torch.ones(D, dtype=V.dtype)), (Y, S))


@check(gated_recurrence, see="One line for all gates")
def cell(run, case):
    """is an LSTM's cell when every cell is a head with D = D_V = 1"""
    B, H, T = case.sizes(3)
    i, f, g = (case.rand(B, H, T, 1) for _ in range(3))
    c, cells = torch.zeros(B, H, dtype=i.dtype), []
    for t in range(T):
        c = f[:, :, t, 0] * c + i[:, :, t, 0] * g[:, :, t, 0]
        cells.append(c)
    visible.demand_run(
        case,
        run(torch.ones_like(i), i, g, f),
        (torch.stack(cells, dim=2)[..., None], c[..., None, None]),
    )


@check(discretise, see="From an equation to steps")
def square(step, case):
    """keeps steps, channels and numbers apart when T = D = N"""
    B, T = case.sizes(2, low=3)
    given = visible.equation(case, B, T, T, T)
    visible.demand_step(case, step(*given), visible.stepped(*given))


@check(selective_state_space, see="Select what to remember")
def square(run, case):
    """keeps steps, channels and numbers apart when T = D = N"""
    B, T = case.sizes(2, low=3)
    given, h = visible.space(case, B, T, T, T), 0.05 * case.randn(B, T, T)
    visible.demand_states(case, run(*given, h), visible.selected(*given, h))


@check(selective_state_space, see="Select what to remember")
def step_by_step(run, case):
    """gives the same when every step is a call of its own"""
    B, T, D, N = case.sizes(4)
    X, delta, A, K, Q, skip = visible.space(case, B, T, D, N)
    expected, _ = visible.selected(X, delta, A, K, Q, skip)
    h = None
    for t in range(T):
        x, length, k, q = (part[:, t : t + 1] for part in (X, delta, K, Q))
        y, h = case.unpack(run(x, length, A, k, q, skip, h), "Y", "h")
        case.equal(y, expected[:, t : t + 1], f"y_{t + 1}, in a call of its own,")


@check(chunked_scan, see=visible.SCAN)
def gradients(scan, case):
    """passes gradients to all inputs, the decay and the state"""
    B, H, D, D_V = case.sizes(4)
    inputs = [*visible.chunk_inputs(case, B, H, 7, D, D_V), 0.02 * case.randn(B, H, D, D_V)]

    def oracle(Q, K, V, log_decay, S):
        return visible.decayed(Q, K, V, log_decay.exp()[..., None], S)

    visible.flow(case, lambda *given: scan(*given, chunk=3), oracle, inputs, "Q K V log_decay S")


@check(chunked_scan, see=visible.SCAN)
def square(scan, case):
    """keeps axes apart when C = D = D_V"""
    B, H = case.sizes(2)
    given, S = visible.chunk_inputs(case, B, H, 12, 4, 4), 0.02 * case.randn(B, H, 4, 4)
    visible.in_chunks(case, scan, given, S, 4)


@check(chunked_scan_fault, see="One that trains as well")
def named(answer, case):
    """names what is wrong"""
    demand_named(case, answer, "E")


@check(rwkv_time_mixing, see="Optional: RWKV, one of the family")
def square(mix, case):
    """keeps sequences, steps and channels apart when B = T = D, and goes on by a single step"""
    (T,) = case.sizes(1, low=3)
    given, state = visible.rwkv_inputs(case, T, T, T), (case.randn(T, T), case.randn(T, T))
    visible.demand_mixed(case, mix(*given, state), visible.faded(*given, state))
    one = [*(part[:, :1] for part in given[:3]), *given[3:]]
    visible.demand_mixed(case, mix(*one, state), visible.faded(*one, state))


@check(short_convolution, see=visible.BACK)
def square(convolve, case):
    """keeps axes apart when T = D = W, and goes on by a single step"""
    B, T = case.sizes(2, low=3)
    X, taps, past = case.randn(B, T, T), visible.small_taps(case, T, T), case.randn(B, T - 1, T)
    for part in (X, X[:, :1]):
        visible.demand_convolved(
            case, convolve(part, taps, past), visible.convolved(part, taps, past)
        )


@check(TokenMixer, see=visible.RULES)
def long(student, case):
    """gives the same over more steps than a chunk has"""
    for rule in ("add", "select"):
        ours, weights = visible.mixer(case, student, 4, 2, rule)
        X = case.randn(2, 21, 4)
        visible.demand_layer(case, ours(X), visible.mixed(weights, rule, X, 2))


@check(HybridDecoder, see=visible.FEW)
def token_by_token(student, case):
    """gives the logits of the whole text when every token is a call of its own"""
    ours, state = visible.decoder(case, student, 2, "select", 2)
    tokens = case.integers(0, 11, 3, 5)
    expected, _ = visible.scored(state, 2, "select", 2, tokens)
    states = None
    for t in range(5):
        logits, states = case.unpack(ours(tokens[:, t : t + 1], states), "logits", "states")
        case.equal(logits, expected[:, t : t + 1], f"logits of token {t}, in a call of its own,")


@check(HybridDecoder, see=visible.FEW)
def other_rules(student, case):
    """has the recurrent layers that are asked for"""
    for rule in ("add", "decay"):
        ours, state = visible.decoder(case, student, 2, rule, None)
        tokens = case.integers(0, 11, 2, 3)
        visible.demand_scores(case, ours(tokens), visible.scored(state, 2, rule, None, tokens))


@check(HybridDecoder, see=visible.FEW)
def all_attention(student, case):
    """is a transformer when every layer is attention"""
    ours, state = visible.decoder(case, student, 2, "select", 1)
    tokens = case.integers(0, 11, 2, 4)
    visible.demand_scores(case, ours(tokens), visible.scored(state, 2, "select", 1, tokens))


OTHERS = (
    {"T": 11, "D": 6, "H": 2, "L": 7, "every": 7},
    {"T": 2, "D": 15, "H": 3, "L": 2, "every": 3},
    {"T": 1, "D": 9, "H": 9, "L": 5, "every": 2, "width": 3},
    {"T": 8, "D": 4, "H": 2, "L": 6, "every": 1, "size": 8},
    {"T": 13, "D": 14, "H": 7, "L": 9, "every": 4, "width": 6, "size": 1},
    {"T": 10**7, "D": 64, "H": 4, "L": 1},
)


@check(state_bytes, see=visible.KEPT)
def other_states(count, case):
    """counts the state of other decoders"""
    visible.demand_bytes(case, count, "state", OTHERS)


@check(state_bytes, see=visible.KEPT)
def other_caches(count, case):
    """counts the cache of other decoders"""
    visible.demand_bytes(case, count, "cache", OTHERS)
