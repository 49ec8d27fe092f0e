"""Hidden checks of memory: gradients, limiting cases, symmetries, numbers that overflow."""

from collections.abc import Callable

import torch
from torch import Tensor

from course_pkg.checking.case import Case
from course_pkg.checking.registry import check
from course_pkg.checks.memory import (
    all_steps,
    bank,
    bank_inputs,
    compare,
    focus,
    glimpse_inputs,
    machine,
    machine_state,
    on_one_row,
    shifted,
    usage_inputs,
    write_inputs,
)
from course_pkg.memory import (
    NTM,
    circular_shift,
    content_addressing,
    dnc_allocation,
    dnc_usage,
    draw_read,
    draw_write,
    gaussian_filterbank,
    interpolate,
    ntm_read,
    ntm_write,
    sharpen,
)


def flow(case: Case, call: Callable, oracle: Callable, inputs: list[Tensor], names: str) -> None:
    """Compare the gradients of a student's function with those of sums written another way."""
    inputs = [tensor.requires_grad_() for tensor in inputs]
    expected = oracle(*inputs)
    seen = case.randn(*expected.shape)
    gradients = torch.autograd.grad(expected, inputs, seen)
    result = call(*inputs)
    case.shape(result, tuple(expected.shape), "the result")
    case.that(result.requires_grad, "Gradients should flow back, yours stop.")
    result.backward(seen.to(result))
    for name, tensor, gradient in zip(names.split(), inputs, gradients, strict=True):
        case.gradient(tensor, gradient, name)


@check(ntm_read, see="Reading is attention")
def gradients(read, case):
    """passes the row's share back to the memory, and the row itself to the weight"""
    B, N, M = case.sizes(3)
    inputs = [case.randn(B, N, M), focus(case, B, N)]
    flow(case, read, lambda memory, w: (memory * w[:, :, None]).sum(dim=1), inputs, "memory w")


@check(ntm_read, see="Reading is attention")
def square(read, case):
    """reads rows, not columns, when N = M"""
    B, N = case.sizes(2)
    memory, rows = case.randn(B, N, N), case.integers(0, N, B)
    expected = torch.stack([memory[n, int(row)] for n, row in enumerate(rows)])
    case.equal(read(memory, on_one_row(rows, N)), expected, "r")


@check(ntm_write, see="Erase, then add")
def gradients(write, case):
    """passes gradients to the memory, the weights, and what is erased and added"""
    B, N, M = case.sizes(3)

    def oracle(memory, w, erase, add):
        erased = torch.einsum("bnm,bn,bm->bnm", memory, w, erase)
        return memory - erased + torch.einsum("bn,bm->bnm", w, add)

    flow(case, write, oracle, write_inputs(case, B, N, M), "memory w erase add")


@check(ntm_write, see="Erase, then add")
def only_erases(write, case):
    """multiplies every row by 1 - w when e = 1 and a = 0"""
    B, N, M = case.sizes(3)
    memory, w, erase, add = write_inputs(case, B, N, M)
    new = write(memory, w, torch.ones_like(erase), torch.zeros_like(add))
    case.equal(new, torch.einsum("bnm,bn->bnm", memory, 1 - w), "memory")


@check(ntm_write, see="Erase, then add")
def square(write, case):
    """keeps rows and columns apart when N = M"""
    B, N = case.sizes(2)
    memory, w, erase, add = write_inputs(case, B, N, N)
    factor = 1 - torch.einsum("bn,bm->bnm", w, erase)
    expected = torch.einsum("bnm,bnm->bnm", memory, factor) + torch.einsum("bn,bm->bnm", w, add)
    case.equal(write(memory, w, erase, add), expected, "memory")


@check(content_addressing, see="Find a row by its content")
def gradients(find, case):
    """passes gradients to the memory, the key and β"""
    B, N, M = case.sizes(3)
    inputs = [case.randn(B, N, M), case.randn(B, M), 1 + case.rand(B)]

    def oracle(memory, key, beta):
        unit = memory / memory.norm(dim=2, keepdim=True), key / key.norm(dim=1, keepdim=True)
        heat = torch.einsum("bnm,bm,b->bn", *unit, beta).exp()
        return heat / heat.sum(dim=1, keepdim=True)

    flow(case, find, oracle, inputs, "memory key beta")


@check(content_addressing, see="Find a row by its content")
def very_sharp(find, case):
    """finds the row that is the key, and no other, when β is very large"""
    B, N, M = case.sizes(3, low=3)
    memory, rows = case.randn(B, N, M), case.integers(0, N, B)
    key = 2.5 * torch.stack([memory[n, int(row)] for n, row in enumerate(rows)])
    w = find(memory, key, torch.full((B,), 1e5, dtype=torch.float64))
    case.equal(w, on_one_row(rows, N), "w")


@check(content_addressing, see="Find a row by its content")
def nothing_to_find(find, case):
    """weighs all rows equally when the key is zero"""
    B, N, M = case.sizes(3, low=3)
    w = find(case.randn(B, N, M), torch.zeros(B, M, dtype=torch.float64), 1 + case.rand(B))
    case.equal(w, torch.full((B, N), 1 / N), "w")


@check(interpolate, see="By content or by place")
def gradients(mix, case):
    """passes gradients to both weights and to the gate"""
    B, N = case.sizes(2)
    inputs = [focus(case, B, N), focus(case, B, N), case.rand(B)]

    def oracle(w_content, w_before, g):
        return w_before + torch.einsum("b,bn->bn", g, w_content - w_before)

    flow(case, mix, oracle, inputs, "w_content w_before g")


@check(interpolate, see="By content or by place")
def square(mix, case):
    """gives each sequence its own gate when B = N"""
    (B,) = case.sizes(1, low=3)
    w_content, w_before, g = focus(case, B, B), focus(case, B, B), case.rand(B)
    case.equal(mix(w_content, w_before, g), (w_before.T.lerp(w_content.T, g)).T, "w")


@check(circular_shift, see="Move on by a row")
def gradients(shift, case):
    """passes gradients to the weights and to the shifts"""
    B, N = case.sizes(2, low=4)
    flow(case, shift, shifted, [focus(case, B, N), focus(case, B, 3)], "w s")


@check(circular_shift, see="Move on by a row")
def five_shifts(shift, case):
    """moves by up to two rows when S = 5"""
    B, N = case.sizes(2, low=6)
    w, s = focus(case, B, N), focus(case, B, 5)
    case.equal(shift(w, s), shifted(w, s), "w")


@check(circular_shift, see="Move on by a row")
def one_shift(shift, case):
    """multiplies by s when the only shift is that by 0"""
    B, N = case.sizes(2, low=4)
    w, s = focus(case, B, N), case.rand(B, 1)
    case.equal(
        shift(w, s), torch.stack([row * share for row, share in zip(w, s, strict=True)]), "w"
    )


@check(circular_shift, see="Move on by a row")
def refuses_two(shift, case):
    """raises ValueError when there are two shifts"""
    B, N = case.sizes(2, low=4)
    w, s = focus(case, B, N), focus(case, B, 2)
    case.raises(ValueError, lambda: shift(w, s), "there are two shifts")


@check(sharpen, see="Against the blur")
def gradients(sharp, case):
    """passes gradients to the weights and to γ"""
    B, N = case.sizes(2)

    def oracle(w, gamma):
        return torch.einsum("bn,b->bn", w.log(), gamma).softmax(dim=1)

    flow(case, sharp, oracle, [focus(case, B, N), 1 + 2 * case.rand(B)], "w gamma")


@check(sharpen, see="Against the blur")
def zeros(sharp, case):
    """keeps weights of zero at zero, with a finite gradient"""
    B, N = case.sizes(2, low=4)
    w = focus(case, B, N)
    w[:, 1] = 0
    w = (w / w.sum(dim=1, keepdim=True)).requires_grad_()
    gamma = (1.5 + case.rand(B)).requires_grad_()
    result = sharp(w, gamma)
    case.shape(result, (B, N), "w")
    case.equal(result[:, 1], torch.zeros(B), "w of the row without weight")
    result[:, 0].sum().backward()
    for name, tensor in (("w", w), ("gamma", gamma)):
        finite = tensor.grad is not None and tensor.grad.isfinite().all()
        case.that(finite, f"The gradient of {name} should be finite, yours is not.")


@check(sharpen, see="Against the blur")
def shares_the_largest(sharp, case):
    """shares the weight between two equally large ones when γ is very large"""
    w = torch.tensor([[0.1, 0.35, 0.2, 0.35], [0.5, 0.1, 0.4, 0.0]], dtype=torch.float64)
    expected = torch.tensor([[0, 0.5, 0, 0.5], [1, 0, 0, 0]], dtype=torch.float64)
    case.equal(sharp(w, torch.tensor([3e3, 4e3], dtype=torch.float64)), expected, "w")


@check(NTM, weight=2, see="One step of the machine")
def gradients(student, case):
    """passes the same gradients back to the inputs and to every weight as the loops"""
    D, D_Y, H, N, M = case.sizes(5)
    B, T = 2, 3
    ours, weights = machine(case, student, D, D_Y, H, N, M)
    X, state = case.randn(B, T, D), machine_state(case, B, N, M)
    seen = case.randn(B, T, D_Y)
    mine = X.clone().requires_grad_()
    outputs, _ = case.unpack(ours(mine, state), "outputs", "state")
    case.shape(outputs, (B, T, D_Y), "outputs")
    case.that(outputs.requires_grad, "Gradients should flow back, yours stop.")
    outputs.backward(seen)
    leaves = {"X": X, **weights}
    for tensor in leaves.values():
        tensor.requires_grad_()
    expected, _ = all_steps(weights, X, state)
    found = torch.autograd.grad(expected, list(leaves.values()), seen)
    given = {"X": mine, **dict(ours.named_parameters())}
    for name, gradient in zip(leaves, found, strict=True):
        case.gradient(given[name], gradient, name)


@check(NTM, see="One step of the machine")
def starts_afresh(student, case):
    """gives the same when called twice"""
    D, D_Y, H, N, M = case.sizes(5)
    B, T = 2, 3
    ours, _ = machine(case, student, D, D_Y, H, N, M)
    X = case.randn(B, T, D)
    first = case.unpack(ours(X), "outputs", "state")
    compare(case, ours(X), first, "outputs of the second call")


@check(NTM, see="One step of the machine")
def alone(student, case):
    """gives each sequence the same output in a batch and on its own"""
    T, D, D_Y, H, N, M = case.sizes(6)
    ours, _ = machine(case, student, D, D_Y, H, N, M)
    X = case.randn(3, T, D)
    outputs, _ = case.unpack(ours(X), "outputs", "state")
    case.shape(outputs, (3, T, D_Y), "outputs")
    single, _ = case.unpack(ours(X[1:2]), "outputs", "state")
    case.equal(single, outputs[1:2], "outputs of a single sequence")


@check(dnc_usage, see="What is in use")
def gradients(update, case):
    """passes gradients to everything that it depends on"""
    B, R, N = case.sizes(3)

    def oracle(usage, w_write, w_read, free):
        kept = 1 - (1 - usage) * (1 - w_write)
        for head in range(R):
            kept = kept - torch.einsum("bn,bn,b->bn", kept, w_read[:, head], free[:, head])
        return kept

    flow(case, update, oracle, usage_inputs(case, B, R, N), "usage w_write w_read free")


@check(dnc_usage, see="What is in use")
def one_head(update, case):
    """works with a single read head"""
    B, N = case.sizes(2)
    usage, w_write, w_read, free = usage_inputs(case, B, 1, N)
    kept = 1 - torch.einsum("b,bn->bn", free[:, 0], w_read[:, 0])
    expected = (1 - (1 - usage) * (1 - w_write)) * kept
    case.equal(update(usage, w_write, w_read, free), expected, "usage")


@check(dnc_usage, see="What is in use")
def rests(update, case):
    """leaves the usage as it is when nothing is written or freed"""
    B, R, N = case.sizes(3)
    usage, w_write, w_read, free = usage_inputs(case, B, R, N)
    case.equal(update(usage, 0 * w_write, w_read, 0 * free), usage, "usage")


@check(dnc_allocation, see="The row used least")
def gradients(allocate, case):
    """passes gradients to the usage of every row"""
    B, N = case.sizes(2, low=4)

    def oracle(usage):
        others = usage[:, None].expand(B, N, N)  # at [n, i, j] the usage of row j
        less = others < usage[:, :, None]
        return (1 - usage) * torch.where(less, others, 1).prod(dim=2)

    flow(case, allocate, oracle, [case.rand(B, N)], "usage")


@check(dnc_allocation, see="The row used least")
def follows_the_rows(allocate, case):
    """moves with the rows when they change places"""
    B, N = case.sizes(2, low=5)
    usage = case.rand(B, N)
    order = torch.randperm(N, generator=case.generator)
    a = allocate(usage)
    case.shape(a, (B, N), "a")
    case.equal(allocate(usage[:, order]), a[:, order], "a with the rows in another order")


@check(dnc_allocation, see="The row used least")
def total(allocate, case):
    """sums to 1 - Π u, even with equal usages"""
    B, N = case.sizes(2, low=4)
    usage = case.rand(B, 1).expand(B, N).clone()
    a = allocate(usage)
    case.shape(a, (B, N), "a")
    case.equal(a.sum(dim=1), 1 - usage[:, 0] ** N, "sum of a")


@check(gaussian_filterbank, see="A row of Gaussian filters")
def gradients(make, case):
    """passes gradients to centre, stride and σ"""
    B, size = case.sizes(2, low=6)
    N = 5

    def oracle(centre, stride, sigma):
        place = torch.linspace(-(N - 1) / 2, (N - 1) / 2, N, dtype=torch.float64)
        mu = centre[:, None] + torch.outer(stride, place)
        heat = ((torch.arange(size) - mu[:, :, None]) / sigma[:, None, None]).square().div(-2).exp()
        return heat / heat.sum(dim=2, keepdim=True)

    def call(centre, stride, sigma):
        return make(centre, stride, sigma, N, size)

    flow(case, call, oracle, bank_inputs(case, B, size), "centre stride sigma")


@check(gaussian_filterbank, see="A row of Gaussian filters")
def one_filter(make, case):
    """puts a single filter at the centre, whatever the stride"""
    B, size = case.sizes(2, low=4)
    centre, stride, sigma = bank_inputs(case, B, size)
    case.equal(make(centre, stride, sigma, 1, size), bank(centre, stride, sigma, 1, size), "F")


@check(gaussian_filterbank, see="A row of Gaussian filters")
def nearest_pixel(make, case):
    """picks the pixel at the border when a narrow filter lies outside"""
    centre = torch.tensor([-80.0, 90.0], dtype=torch.float64)
    narrow = torch.full((2,), 0.4, dtype=torch.float64)
    F = make(centre, torch.full((2,), 2.0, dtype=torch.float64), narrow, 2, 6)
    expected = on_one_row(torch.tensor([[0, 0], [5, 5]]), 6)
    case.equal(F, expected, "F")


@check(draw_read, see="Take a glimpse")
def gradients(look, case):
    """passes gradients to the image, to both filters and to γ"""
    B, N, Y, X = case.sizes(4)

    def oracle(image, F_Y, F_X, gamma):
        return torch.einsum("b,biy,byx,bjx->bij", gamma, F_Y, image, F_X)

    flow(case, look, oracle, glimpse_inputs(case, B, N, Y, X), "image F_Y F_X gamma")


@check(draw_read, see="Take a glimpse")
def square(look, case):
    """uses the vertical filters on rows, even for square images with N = Y = X"""
    B, N = case.sizes(2, low=3)
    image, F_Y, F_X, gamma = glimpse_inputs(case, B, N, N, N)
    expected = torch.stack(
        [gamma[n] * F_Y[n] @ image[n] @ F_X[n].T for n in range(B)],
    )
    case.equal(look(image, F_Y, F_X, gamma), expected, "glimpse")


@check(draw_write, see="Paint where you look")
def gradients(paint, case):
    """passes gradients to the patch, to both filters and to γ"""
    B, N, Y, X = case.sizes(4)
    _, F_Y, F_X, gamma = glimpse_inputs(case, B, N, Y, X)

    def oracle(patch, F_Y, F_X, gamma):
        return torch.einsum("b,biy,bij,bjx->byx", 1 / gamma, F_Y, patch, F_X)

    flow(case, paint, oracle, [case.randn(B, N, N), F_Y, F_X, gamma], "patch F_Y F_X gamma")


@check(draw_write, see="Paint where you look")
def square(paint, case):
    """uses the vertical filters on rows, even for square images with N = Y = X"""
    B, N = case.sizes(2, low=3)
    _, F_Y, F_X, gamma = glimpse_inputs(case, B, N, N, N)
    patch = case.randn(B, N, N)
    expected = torch.stack([F_Y[n].T @ patch[n] @ F_X[n] / gamma[n] for n in range(B)])
    case.equal(paint(patch, F_Y, F_X, gamma), expected, "canvas")
