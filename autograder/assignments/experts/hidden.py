"""Hidden checks of experts: other sizes, extremes, and what is kept or changed."""

import torch

from course_pkg.checking.black_box import demand_named
from course_pkg.checking.registry import check
from course_pkg.checks.experts import (
    adapted,
    counted_loss,
    demand_balanced,
    demand_routes,
    drawn_choices,
    mixed,
    mixture,
)
from course_pkg.experts import (
    LoRA,
    MixtureOfExperts,
    balance_by_bias,
    load_balancing_loss,
    load_balancing_loss_fault,
    lora_parameters,
    route_top_k,
)


@check(route_top_k, see="Choose the experts")
def edges(route, case):
    """routes a single token, and all tokens to a single expert"""
    demand_routes(case, route, case.randn(1, 6), 3, "of a single token")
    demand_routes(case, route, case.randn(5, 1), 1, "where there is one expert")
    case.raises(ValueError, lambda: route(case.randn(4, 5), -1), "k is -1")
    weights, experts = case.unpack(route(torch.zeros(1, 3), 2), "weights", "experts")
    case.equal(weights, torch.full((1, 2), 0.5), "weights of three equal scores")
    twice = experts.tolist()[0]
    case.that(len(set(twice)) == 2, f"Two experts should be chosen, yours are {twice}.")


@check(load_balancing_loss, see="Keep all of them busy")
def one_token(loss, case):
    """counts one token that goes to all experts, or to one"""
    logits = case.randn(1, 5)
    for k in (5, 1):
        experts = torch.tensor([[3, 0, 4, 1, 2][:k]])
        case.equal(
            loss(logits, experts), counted_loss(logits, experts), f"L of one token and k = {k}"
        )


@check(load_balancing_loss, see="Keep all of them busy")
def any_order(loss, case):
    """does not ask which of a token's experts comes first"""
    M, E, k = case.sizes(3, low=3)
    E = E + k + 1
    logits, experts = 3 * case.randn(M, E), drawn_choices(case, M, E, k)
    other = experts.flip(1)
    case.equal(loss(logits, other), counted_loss(logits, experts), "L in another order")


@check(load_balancing_loss_fault, see="One that trains as well")
def named(answer, case):
    """names what is wrong"""
    demand_named(case, answer, "D")


@check(balance_by_bias, see="Balance without a loss")
def one_token(route, case):
    """routes a single token, and tokens to a single expert"""
    logits, bias = case.randn(1, 6), case.randn(6)
    demand_balanced(case, route, logits, bias, 2, 0.4, "of a single token")
    alone = case.randn(5, 1), case.randn(1)
    demand_balanced(case, route, *alone, 1, 0.4, "where there is one expert")


@check(balance_by_bias, see="Balance without a loss")
def far_apart(route, case):
    """lets a large bias choose an expert, and weighs it by its small score all the same"""
    M, E, k = case.sizes(3, low=4)
    E = E + k + 2
    logits, bias = 2 * case.randn(M, E), torch.zeros(E).double()
    bias[2], bias[3] = 40, -40
    demand_balanced(case, route, logits, bias, k, 0.05, "with one large bias and one small one")


@check(MixtureOfExperts, see="Experts in place of one network")
def room_for_all(moe, case):
    """drops nothing when there is room for all, and counts anew in each call"""
    B, T, D = case.sizes(3)
    ours, state = mixture(case, moe, D, 4, 2, B * T)
    for text in range(2):
        X = case.randn(B, T, D)
        case.equal(ours(X), mixed(state, X, 2), f"Y of call {text}, with room for all")


@check(MixtureOfExperts, see="Experts in place of one network")
def strided(moe, case):
    """reads tokens in the order of their axes, wherever in memory they lie"""
    B, T, D = case.sizes(3)
    ours, state = mixture(case, moe, D, 4, 2, 3)
    X = case.randn(T, B, D).transpose(0, 1)
    case.equal(ours(X), mixed(state, X, 2, 3), "Y of vectors that do not lie in a row")
    one = case.randn(D)
    case.equal(ours(one), mixed(state, one, 2, 3), "Y of a single vector")


@check(LoRA, see="Adapt a little")
def axes(lora, case):
    """adapts a vector alone, and sequences of them"""
    B, D_in, r, D_out = case.sizes(4)
    ours, W, added = adapted(case, lora, 0.5, D_in, r, D_out)
    for shape in ((D_in,), (B, 2, D_in)):
        X = case.randn(*shape)
        case.equal(ours(X), X @ (W + added), f"Y for X of shape {tuple(X.shape)}")


@check(lora_parameters, see="Count what is trained")
def published(count, case):
    """counts 19 988 480 for Llama 2 7B at rank 8, in ints under these names alone"""
    result = count(D=4096, H=32, G=32, L=32, F=11008, r=8)
    case.that(isinstance(result, dict), "The result should be a dict, yours is not.")
    wanted = {"attention": 8_388_608, "feed_forward": 11_599_872, "total": 19_988_480}
    for name, number in wanted.items():
        given = result.get(name)
        case.that(given == number, f"{name} should be {number:,}, yours is {given!r:.30}.")
    more = sorted(map(str, set(result) - set(wanted)))
    case.that(not more, f"There should be no other names, yours has {(more or [''])[0]}.")
