"""Checks of speculative. Oracles: enumeration, loops over numbers, whole texts without caches."""

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from course_pkg.checking.batched import of_each, together
from course_pkg.checking.black_box import demand_exposed
from course_pkg.checking.case import Case
from course_pkg.checking.memo import once
from course_pkg.checking.models import SmallDraft, SmallReader, SmallServed
from course_pkg.checking.programs.programs import Program, follow, played
from course_pkg.checking.registry import check
from course_pkg.checking.telling.failure import Failure, describe
from course_pkg.checks.paged_attention import flat, number, numbers, pairs, record, same, tables
from course_pkg.checks.serving import (
    free_blocks,
    listed,
    plain_logits,
    plain_tokens,
    run,
    serve,
    small_model,
    texts,
)
from course_pkg.engine.requests import EngineConfig, NeverFits, SamplingParams
from course_pkg.gpt import token_probabilities
from course_pkg.inference.trees import read_tree
from course_pkg.llama import Llama
from course_pkg.speculative import (
    SpeculativeCore,
    SpeculativeWriter,
    Speculator,
    accept_or_resample,
    accept_path,
    best_draft_length,
    draw_token,
    expected_tokens,
    prompt_lookup,
    prompt_lookup_fault,
    tree_mask,
)

Law = dict[tuple[int, ...], Tensor]  # the probabilities after each text


def pick(weights: list[float], u: float) -> int:
    """Draw by going along the weights."""
    reached, total = 0.0, sum(weights)
    for token, weight in enumerate(weights):
        reached += weight
        if weight > 0 and reached > u * total:
            return token
    raise AssertionError("u is 1 or more")


def demand_drawn(case: Case, draw, weights: Tensor, us: list[float], what: str) -> None:
    """Compare the tokens that are drawn with several numbers."""
    given = tokens_drawn(draw, [(weights, u) for u in us])
    same(case, given, [pick(weights.tolist(), u) for u in us], what)


def tokens_drawn(draw, inputs: list[tuple]) -> list[int]:
    """Draw a token for each of several weights and numbers."""
    return [number(token, "the token") for token in of_each(draw, inputs)]


@check(draw_token, weight=2, see="A number becomes a token")
def in_proportion(draw, case):
    """gives each token the share of the numbers that is its probability"""
    us = [(n + 0.5) / 15 for n in range(15)]
    inputs = [(p, u) for p in torch.softmax(2 * case.randn(4, 7), dim=1) for u in us]
    expected = [pick(p.tolist(), u) for p, u in inputs]
    same(
        case,
        tokens_drawn(draw, inputs),
        expected,
        "tokens for 15 numbers u, for each of four distributions",
    )


@check(draw_token, see="A number becomes a token")
def weights(draw, case):
    """takes weights that do not sum to one"""
    for scale in (0.3, 5.0):
        rest = scale * case.rand(6)
        us = [(n + 0.5) / 40 for n in range(40)]
        demand_drawn(
            case, draw, rest, us, f"tokens for weights that sum to {float(rest.sum()):.2f}"
        )


@check(draw_token, see="A number becomes a token")
def never_impossible(draw, case):
    """draws no token whose probability is 0, also where u lies on a border"""
    p = torch.tensor([0, 3, 0, 1, 0, 4, 0], dtype=torch.float64) / 8
    demand_drawn(case, draw, p, [n / 8 for n in range(8)], "tokens for u = 0, 1/8, …, 7/8")


@check(draw_token, see="A number becomes a token")
def ends(draw, case):
    """finds the first and the last token that are possible"""
    p = torch.tensor([0, 0.3, 0.0, 0.4, 0, 0])
    demand_drawn(case, draw, p, [0.0, 1 - 2**-24, 0.4, 0.5] * 2, "tokens for u at both ends")
    for V in (1, 2):
        only = torch.eye(V, dtype=torch.float64)[-1]
        demand_drawn(case, draw, only, [0.0, 0.999], f"tokens when one of {V} is certain")
    p = torch.tensor([2.0**24, 1, 1])
    what = "tokens where a sum in float32 loses the last two"
    demand_drawn(case, draw, p, [0.5, 1 - 9e-8, 1 - 5e-8], what)


def chances(case: Case, *shape: int, zeros: bool = False) -> Tensor:
    """Draw probabilities; with zeros, half of them are 0."""
    p = torch.softmax(2 * case.randn(*shape), dim=-1)
    if zeros:
        half = case.rand(*shape).argsort(dim=-1) < shape[-1] // 2
        p = p.masked_fill(half, 0)
    return p / p.sum(dim=-1, keepdim=True)


def judged(p: Tensor, q: Tensor, drafted: list[int], u: list[float]) -> list[int]:
    """Accept or resample, number by number."""
    k = len(drafted)
    for n, token in enumerate(drafted):
        if u[n] * float(q[n, token]) >= float(p[n, token]):
            rest = [max(a - b, 0.0) for a, b in zip(p[n].tolist(), q[n].tolist(), strict=True)]
            return [*drafted[:n], pick(rest, u[k])]
    return [*drafted, pick(p[k].tolist(), u[k])]


def as_list(value: object, what: str) -> list[int]:
    """Demand a tensor of tokens in one row."""
    if not isinstance(value, Tensor) or value.dim() != 1:
        raise Failure(f"{what} should be a tensor of tokens, one row, yours is {describe(value)}.")
    if value.is_floating_point() or value.dtype == torch.bool:
        raise Failure(
            f"{what} should hold tokens, whole numbers, yours is {value.dtype}: is it joined with "
            "an empty tensor, or one of probabilities, that has this type?"
        )
    return value.tolist()


def tell_rows(
    scenes: Sequence[str], rows: list[list[int]], expected: list[list[int]], what: str
) -> None:
    """Compare rows of tokens; the first that is wrong is told with its scene.

    Known mistakes are recognised by all rows; short ones are filled up with -1.
    """
    width = max(map(len, [*rows, *expected]), default=0)
    given = torch.tensor([row + [-1] * (width - len(row)) for row in rows])
    for scene, found, right in zip(scenes, rows, expected, strict=True):
        if found != right:
            raise Failure(f"{scene}: {tell_row(found, right)}", what=what, observed=given)


def tell_row(found: list[int], right: list[int]) -> str:
    """Say from which token on a row is another one than it should be."""
    if max(len(found), len(right)) <= 9:
        return f"{right} should come, yours gives {found}."
    both = list(zip(found, right, strict=False))
    n = next((n for n, (one, other) in enumerate(both) if one != other), len(both))
    begin = f"the first {n} tokens are right, then " if n else ""
    if n < len(both):
        return f"{begin}token {right[n]} should come, yours gives {found[n]}."
    left = len(right) - n, len(found) - n
    return f"{begin}{left[0] or 'no'} more should come, yours gives {left[1] or 'none'}."


def outcomes(accept, inputs: list[tuple]) -> list[list[int]]:
    """Call a student's function for each of several p, q, drafted tokens and numbers u."""
    given = [
        (p, q, torch.tensor(drafted, dtype=torch.long), torch.tensor(u, dtype=torch.float64))
        for p, q, drafted, u in inputs
    ]
    rows = [as_list(found, "the result") for found in of_each(accept, given)]
    for tokens, (p, _, drafted, _) in zip(rows, inputs, strict=True):
        if not 1 <= len(tokens) <= len(drafted) + 1:
            text = f"{len(drafted)} drafted tokens give 1 to {len(drafted) + 1}"
            raise Failure(f"Too many or too few: {text}, yours are {len(tokens)}.")
        V = p.shape[1]
        if any(not 0 <= token < V for token in tokens):
            text = f"With {V} tokens in the vocabulary, each should lie in 0 … {V - 1}"
            raise Failure(f"{text}, yours are {tokens}: do the weights sum to 0?")
    return rows


def compare_outcomes(case: Case, accept, inputs: list[tuple], what: str) -> None:
    """Compare what comes out of several calls."""
    rows = outcomes(accept, inputs)
    scenes = [judging(*each) for each in inputs]
    tell_rows(scenes, rows, [judged(*each) for each in inputs], what)


def judging(p: Tensor, q: Tensor, drafted: list[int], u: list[float]) -> str:
    """Tell a call in words."""
    ratios = ", ".join(f"{float(p[n, x] / q[n, x]):.3g}" for n, x in enumerate(drafted))
    return f"Drafts {drafted}, p / q = {ratios}, u = {', '.join(f'{each:.3g}' for each in u)}"


def boxes(p: Tensor, q: Tensor, drafted: tuple) -> list[tuple[float, list[float]]]:
    """Cut the cube of uniform numbers where something else happens: volumes, and points inside.

    A point is a little below the middle: a wrong rule may have a border in the middle, such as that
    of |p - q|, and rounding decide there.
    """
    k, found, left, inside = len(drafted), [], 1.0, 0.46
    passes = [min(1.0, float(p[n, x] / q[n, x])) for n, x in enumerate(drafted)]
    for end in range(k + 1):
        share = left * (1 - passes[end]) if end < k else left
        point = [inside * a for a in passes[:end]]
        if end < k:
            left *= passes[end]
            point += [passes[end] + inside * (1 - passes[end])] + [inside] * (k - end - 1)
        if share > 0:
            rest = p[k] if end == k else (p[end] - q[end]).clamp(min=0)
            border = [0.0, *(rest / rest.sum()).cumsum(0).tolist()]
            for low, high in itertools.pairwise(border):
                if high > low:
                    found.append((share * (high - low), [*point, low + inside * (high - low)]))
    return found


def rows_of(law: Law, drafted: tuple[int, ...]) -> Tensor:
    """Stack the probabilities before each drafted token and after the last."""
    return torch.stack([law[drafted[:n]] for n in range(len(drafted) + 1)])


@once
def all_ways(target: Law, draft: Law, V: int, k: int) -> list[tuple]:
    """List what can happen in a step: how likely it is, the drafted tokens, the numbers u."""
    found = []
    for drafted in itertools.product(range(V), repeat=k):
        p, q = rows_of(target, drafted), rows_of(draft, drafted)[:k]
        weight = math.prod(float(q[n, x]) for n, x in enumerate(drafted))
        for volume, u in boxes(p, q, drafted) if weight else []:
            found.append((weight * volume, drafted, u))
    return found


def demand_law(case: Case, accept, V: int, k: int, zeros: bool = False) -> None:
    """Enumerate all drafts and outcomes, and compare the distribution of k + 1 tokens."""
    every = [t for n in range(k + 1) for t in itertools.product(range(V), repeat=n)]
    target = {text: chances(case, V) for text in every}
    draft = {text: chances(case, V, zeros=zeros) for text in every}
    p = {text: row.tolist() for text, row in target.items()}
    law = dict.fromkeys(itertools.product(range(V), repeat=k + 1), 0.0)
    wanted = [math.prod(p[whole[:n]][whole[n]] for n in range(k + 1)) for whole in law]
    ways = all_ways(target, draft, V, k)
    rows = {text: (rows_of(target, text), rows_of(draft, text)[:k]) for _, text, _ in ways}
    given = outcomes(accept, [(*rows[text], list(text), u) for _, text, u in ways])
    for found, (weight, *_) in zip(map(tuple, given), ways, strict=True):
        for rest in itertools.product(range(V), repeat=k + 1 - len(found)):
            text = found + rest  # what is shorter goes on as the target does
            later = [p[text[:n]][text[n]] for n in range(len(found), k + 1)]
            law[text] += weight * math.prod(later)
    what = f"distribution of {k + 1} tokens, {k} of them drafted, {V} in the vocabulary"
    both = (torch.tensor(each, dtype=torch.float64) for each in ([*law.values()], wanted))
    reached, expected = (each.view((V,) * (k + 1)) for each in both)
    case.equal(reached, expected, what, rtol=0, atol=1e-12)


@check(accept_or_resample, weight=3, see="Accept or resample")
def exact(accept, case):
    """gives tokens whose distribution is the target's to 1e-12, by enumeration"""
    for k in (1, 2):
        demand_law(case, accept, 4, k)


@check(accept_or_resample, weight=2, see="Accept or resample")
def accepts(accept, case):
    """accepts a token if u is below p / q, and none after the first that it rejects"""
    inputs = []
    for _ in range(12):
        p, q, drafted = chances(case, 4, 6), chances(case, 3, 6), case.integers(0, 6, 3).tolist()
        ratio = [float(p[n, x] / q[n, x]) for n, x in enumerate(drafted)]
        sides = (0.98 + 0.04 * case.integers(0, 2, 3)).tolist()
        u = [min(a * b, 0.999) for a, b in zip(ratio, sides, strict=True)]
        inputs.append((p, q, drafted, [*u, float(case.rand(1))]))
    compare_outcomes(case, accept, inputs, "tokens for u just below and just above p / q")


@check(accept_or_resample, see="Accept or resample")
def one_more(accept, case):
    """adds a token of the target's when it has accepted all"""
    inputs = []
    for n in range(12):
        p, drafted = chances(case, 3, 5), case.integers(0, 5, 2).tolist()
        q = torch.stack([p[0].flip(0), p[1].roll(1)])
        q[[0, 1], drafted] = p[[0, 1], drafted] / 2
        inputs.append((p, q / q.sum(1, keepdim=True), drafted, [0.3, 0.2, (n + 0.5) / 12]))
    compare_outcomes(case, accept, inputs, "tokens when all are accepted")


@check(accept_or_resample, see="Where there is no choice")
def certain(accept, case):
    """decides without chance where the draft, the target or both are certain"""
    inputs, eye = [], torch.eye(5, dtype=torch.float64)
    for n in range(16):
        drafted, best = case.integers(0, 5, 3), case.integers(0, 5, 4)
        best[: n % 4] = drafted[: n % 4]
        p = eye[best] if n < 10 else chances(case, 4, 5)
        inputs.append((p, eye[drafted], drafted.tolist(), case.rand(4).tolist()))
    compare_outcomes(case, accept, inputs, "tokens when p or q is 1 for one token")


@check(accept_or_resample, see="Accept or resample")
def borders(accept, case):
    """rejects what the target finds impossible, and accepts only below p / q"""
    p = torch.tensor([[0, 0.25, 0.25, 0.5], [0.25, 0.125, 0.125, 0.5]], dtype=torch.float64)
    q = torch.tensor([[0.5, 0.5, 0, 0]], dtype=torch.float64)
    inputs = [(p, q, [x], [u, last]) for x in (0, 1) for u in (0, 0.5, 0.4375) for last in (0, 0.9)]
    compare_outcomes(case, accept, inputs, "tokens where u is 0 or p / q")


@check(accept_or_resample, see="Accept or resample")
def rounding(accept, case):
    """draws from p where rounding leaves nothing of p - q"""
    p = torch.tensor([[0.5, 0.25, 0.2499999], [0.1, 0.2, 0.7]], dtype=torch.float64)
    q = torch.tensor([[0.5, 0.25, 0.25]], dtype=torch.float64)
    inputs = [(p, q, [2], [1 - 1e-9, u]) for u in (0.2, 0.6, 0.9) * 2]
    given = [first for first, *_ in outcomes(accept, inputs)]
    same(case, given, [0, 1, 2] * 2, "tokens where rounding leaves nothing of p - q")
    p[0], q[0] = torch.tensor([0.5, 0.49998, 0.00002]), torch.tensor([0.5, 0.5, 0])
    inputs = [(p, q, [1], [0.99999, u]) for u in (0.2, 0.6, 0.9)]
    given = [first for first, *_ in outcomes(accept, inputs)]
    same(case, given, [2] * 3, "tokens where p - q leaves 0.00002 of one token")


@check(accept_or_resample, see="Accept or resample")
def refuses(accept, case):
    """raises ValueError for too few or too many rows"""
    p, q, drafted, u = (
        chances(case, 4, 5),
        chances(case, 3, 5),
        torch.tensor([0, 1, 2]),
        case.rand(4),
    )
    for wrong in ((p[:3], q, drafted, u), (p, p, drafted, u), (p, q, drafted, u[:3])):
        case.raises(ValueError, lambda w=wrong: accept(*w), "the sizes do not fit")
    case.raises(ValueError, lambda: accept(p, q, drafted[:2], u), "two tokens come with three rows")
    longer = torch.cat([u, u[:1]])
    case.raises(ValueError, lambda: accept(p, q, drafted, longer), "there is a number u too many")


def reader(case: Case, V: int = 7, C: int = 5) -> SmallReader:
    """Draw a model that goes on where it stopped."""
    return SmallReader((case.randn(V, C), case.randn(V, C), 2 * case.randn(C, V), []))


def near(case: Case, model: SmallReader) -> SmallReader:
    """A model that often says the same as another."""
    last, earlier, output, _ = model
    return SmallReader((last, earlier, output + case.randn(*output.shape) / 2, []))


def after(model: SmallReader, text: list[int], temperature: float) -> Tensor:
    """The probabilities after each token of a text, read as a whole."""
    logits = SmallReader((*model[:3], []))(torch.tensor([text]))[0]
    return token_probabilities(logits, temperature)


@once
def step_by_hand(
    target: SmallReader,
    draft: SmallReader | None,
    text: list[int],
    k: int,
    u: list[float],
    temperature: float,
) -> list[int]:
    """Take a step without any cache."""
    drafted, q = drafted_by_hand(target, draft, text, k, u, temperature)
    p = after(target, text + drafted, temperature)[len(text) - 1 :]
    rows = torch.stack(q) if q else p[:0]
    return judged(p, rows, drafted, u[k : k + len(drafted) + 1])


def drafted_by_hand(
    target: SmallReader,
    draft: SmallReader | None,
    text: list[int],
    k: int,
    u: list[float],
    temperature: float,
) -> tuple[list[int], list[Tensor]]:
    """Draft without any cache: the tokens, and what each was drawn from."""
    if draft is None:
        drafted = looked_up(text, k)
        return drafted, [torch.eye(target[2].shape[1])[x].double() for x in drafted]
    q, whole = [], list(text)
    for n in range(k):
        q.append(after(draft, whole, temperature)[-1])
        whole.append(pick(q[n].tolist(), u[n]))
    return whole[len(text) :], q


def take_steps(case: Case, one, text: list[int], ks: list[int]) -> tuple[list, list, list]:
    """Take steps with a student's object: the new tokens of each, and what was drawn for it."""
    drawn = [case.rand(2 * k + 1) for k in ks]
    rows, lengths = steps_in_turn(one, text, ks, drawn)
    read = [list(case.unpack(pair, "target", "draft")) for pair in lengths]
    return rows, [u.tolist() for u in drawn], read


@together
def steps_in_turn(one, text: list[int], ks: list[int], drawn: list) -> tuple[list, list]:
    """Take steps: the new tokens of each, and the lengths of the caches after it."""
    rows, lengths = [], []
    for k, u in zip(ks, drawn, strict=True):
        new = as_list(one.speculative_step(torch.tensor(text), k, u), "the new tokens")
        if not 1 <= len(new) <= k + 1:
            raise Failure(f"A step of {k} drafts should add 1 to {k + 1} tokens, yours {len(new)}.")
        rows.append(new)
        pair = one.lengths
        lengths.append(list(pair) if isinstance(pair, list) else pair)
        text = text + new
    return rows, lengths


@together
def first_steps(speculators, questions: list[tuple]) -> list[tuple]:
    """Take a step of each of several new ones: the new tokens, and the lengths of the caches."""
    found = []
    for settings, text, k, u in questions:
        rows, lengths = steps_in_turn(speculators(*settings), text, [k], [u])
        found.append((rows[0], lengths[0]))
    return found


def compare_steps(case: Case, speculators, target, draft, temperature: float, ks: list) -> tuple:
    """Compare steps with those by hand.

    Returns:
        What the caches hold after each step, what they should hold, and each step in words.
    """
    text = case.integers(0, 7, 4).tolist()
    one = speculators(target, draft, 80, temperature)
    rows, drawn, read = take_steps(case, one, text, ks)
    expected, kept, scenes = [], [], []
    for k, u in zip(ks, drawn, strict=True):
        so_far = text + flat(expected)
        guess, _ = drafted_by_hand(target, draft, so_far, k, u, temperature)
        expected.append(step_by_hand(target, draft, so_far, k, u, temperature))
        accepted = len(expected[-1]) - 1
        before = kept[-1][1] if kept else 0
        own = len(so_far) + min(accepted, k - 1) if k else before
        kept.append([len(so_far) + accepted, own])
        scenes.append(
            f"Step {len(scenes) + 1} at temperature {temperature}, with a text of {len(so_far)} "
            f"tokens, drafts {guess} and accepts {accepted}"
        )
    tell_rows(scenes, rows, expected, f"new tokens of {len(ks)} steps at temperature {temperature}")
    return read, kept, scenes


def tell_lengths(read: list, kept: list, scenes: list[str], what: str) -> None:
    """Compare how many tokens the two caches hold after each step, or each of several first ones.

    Args:
        read, kept: what they hold, and what they should hold: [target's, draft's] for each.
        scenes: what has happened before.
        what: by which known mistakes are recognised.
    """
    for scene, found, right in zip(scenes, read, kept, strict=True):
        for owner, given, wanted in zip(("target", "draft"), found, right, strict=True):
            if given != wanted:
                given = number(given, f"lengths: that of the {owner}")
                text = f"then the {owner}'s cache should hold {wanted} tokens, yours holds {given}."
                observed = torch.tensor(flat(read))
                raise Failure(f"{scene}: {text}", what=what, observed=observed)


@check(Speculator, weight=3, see="One step")
def steps(speculators, case):
    """adds the tokens that drafting and judging without any cache add"""
    target = reader(case)
    for temperature in (1.0, 0.6):
        compare_steps(case, speculators, target, near(case, target), temperature, [3] * 8)


@check(Speculator, see="One step")
def drafts(speculators, case):
    """drafts with the draft model, each token from the probabilities that it returns"""
    target, draft = reader(case), reader(case)
    text, u = case.integers(0, 7, 5), case.rand(4)
    found = speculators(target, draft, 20, 0.7).propose(text, 4, u)
    drafted, q = case.unpack(found, "drafted", "q")
    whole, rows = text.tolist(), []
    for n in range(4):
        rows.append(after(draft, whole, 0.7)[-1])
        whole.append(pick(rows[n].tolist(), float(u[n])))
    case.equal(q, torch.stack(rows), "q")
    same(case, as_list(drafted, "drafted"), whole[5:], "drafted tokens")


@check(Speculator, weight=2, see="One step")
def one_pass(speculators, case):
    """lets the target read each step in one pass, and nothing that it has read before"""
    target = reader(case)
    draft, k = near(case, target), 3
    one, text = speculators(target, draft, 80), case.integers(0, 7, 4).tolist()
    rows, _, _ = take_steps(case, one, text, [k] * 8)
    passes = len(one.target[3])
    text = f"The target should make 8 passes for 8 steps, yours makes {passes}."
    case.that(passes == 8, f"{text} Does it read all drafts of a step at once?")
    before = ["of a new text of 4 tokens"]
    before += [f"after one that accepted {len(row) - 1} of {k} drafts" for row in rows[:-1]]
    scenes = [f"Step {n + 1}, {text}" for n, text in enumerate(before)]
    tell_passes("target", scenes, list(one.target[3]), [[4 + k]] + [[k + 1]] * 7)
    first = [2 if len(row) == k + 1 else 1 for row in rows[:-1]]
    tell_passes("draft", scenes, list(one.draft[3]), [[n, 1, 1] for n in (4, *first)])


def tell_passes(model: str, scenes: list[str], given: list[int], expected: list[list[int]]) -> None:
    """Compare how many tokens a model reads in each pass of each step."""
    what, at = f"tokens that the {model} reads in each pass", 0
    for scene, right in zip(scenes, expected, strict=True):
        found, at = given[at : at + len(right)], at + len(right)
        if found != right:
            text = f"the {model} should read {listing(right)}, yours reads {listing(found)}"
            raise Failure(f"{scene}: {text}.", what=what, observed=torch.tensor(given))
    if len(given) > at:
        text = f"The {model} should make {at} passes in {len(scenes)} steps, yours makes"
        raise Failure(f"{text} {len(given)}.", what=what, observed=torch.tensor(given))


def listing(counts: list[int]) -> str:
    """Say how many tokens are read in each of some passes."""
    return f"{', then '.join(map(str, counts)) or 'no'} tokens"


@check(Speculator, weight=2, see="Forget what is not the text")
def rolls_back(speculators, case):
    """leaves in both caches what is part of the text, and no more"""
    target, k, questions, kept = reader(case), 3, [], []
    for length in range(2, 12):
        text, u = case.integers(0, 7, length).tolist(), case.rand(2 * k + 1)
        questions.append(((target, near(case, target), 40), text, k, u))
    found, scenes = first_steps(speculators, questions), []
    read = [list(case.unpack(pair, "target", "draft")) for _, pair in found]
    for (_, text, *_), (new, _) in zip(questions, found, strict=True):
        kept.append([len(text) + len(new) - 1, len(text) + min(len(new), k) - 1])
        scenes.append(f"A first step accepts {len(new) - 1} of {k} drafts after {len(text)} tokens")
    what = "lengths of the caches of target and draft after a first step, for ten texts"
    tell_lengths(read, kept, scenes, what)


@check(Speculator, weight=2, see="One step")
def changing(speculators, case):
    """drafts another number of tokens in every step, none too"""
    target = reader(case)
    ks = [2, 0, 4, 1, 0, 0, 3, 5, 1]
    found = compare_steps(case, speculators, target, near(case, target), 0.7, ks)
    tell_lengths(*found, "lengths of the two caches after each of nine steps")


@check(Speculator, see="One step")
def accepted(speculators, case):
    """notes how many tokens it has drafted and accepted"""
    target = reader(case)
    ks, found, expected = [3, 2, 3, 0, 4, 1], [], []
    for draft in (near(case, target), reader(case)):
        one, text = speculators(target, draft, 80), case.integers(0, 7, 4).tolist()
        rows, _, _ = take_steps(case, one, text, ks)
        found.append(pairs(one.history, "history"))
        expected.append([(k, len(row) - 1) for k, row in zip(ks, rows, strict=True)])
    tell_history(found, expected, "drafted and accepted tokens of six steps, for two drafts")


def tell_history(found: list, expected: list, what: str) -> None:
    """Compare histories, of (drafted, accepted) for each step."""
    observed = torch.tensor([value for rows in found for row in rows for value in row])
    for given, right in zip(found, expected, strict=True):
        if len(given) != len(right):
            text = f"After {len(right)} steps the history should hold {len(right)} entries"
            raise Failure(f"{text}, yours holds {len(given)}.", what=what, observed=observed)
        for n, (one, other) in enumerate(zip(given, right, strict=True)):
            if one != other:
                text = f"Step {n + 1} drafts {other[0]} tokens, of which {other[1]} are accepted"
                text += f": the history should note {other}, yours notes {one}."
                raise Failure(text, what=what, observed=observed)


@check(Speculator, see="Where there is no choice")
def best(speculators, case):
    """adds the target's best tokens at temperature 0, whatever the draft is"""
    target = reader(case)
    for draft in (near(case, target), reader(case)):
        compare_steps(case, speculators, target, draft, 0.0, [3] * 8)


@check(Speculator, see="Forget what is not the text")
def keeps_what_is_there(speculators, case):
    """forgets down to a length, and not what is shorter already"""
    one, text = speculators(reader(case), reader(case), 60), case.integers(0, 7, 6).tolist()
    take_steps(case, one, text, [4, 4])
    found = []
    for length in (50, 7, 5, 6, 0):
        one.rollback(length)
        found += list(case.unpack(one.lengths, "target", "draft"))
    same(case, found[2:], [7, 7, 5, 5, 5, 5, 0, 0], "lengths after rollback to 7, 5, 6 and 0")


@check(Speculator, see="Where there is no choice")
def nothing_drafted(speculators, case):
    """steps without a draft model when nothing is drafted, and then gives no probabilities"""
    compare_steps(case, speculators, reader(case), None, 0.8, [0] * 4)
    one = speculators(reader(case), reader(case), 20)
    drafted, q = case.unpack(one.propose(case.integers(0, 7, 5), 0, case.rand(0)), "drafted", "q")
    same(case, as_list(drafted, "drafted"), [], "drafted tokens for k = 0")
    case.that(q is None, f"q should be None for k = 0, yours is {describe(q)}.")


def unguarded(value):
    """Give what stands behind the guard of something of a student's, beside which this runs."""
    return getattr(value, "_target", value)


@together
def steps_with(speculators, settings: tuple, questions: list[tuple]) -> list[tuple]:
    """Take a step of each of several new ones, whose `propose` gives tokens without a choice."""
    found = []
    for text, guess, k, u in questions:
        one = speculators(*settings)
        unguarded(one).propose = lambda text, k, u, guess=guess: (text.new_tensor(guess), None)
        new = as_list(one.speculative_step(torch.tensor(text), k, u), "the new tokens")
        found.append((new, pairs(one.history, "history")))
    return found


@check(Speculator, see="One step")
def fewer(speculators, case):
    """judges and notes as many drafts as there are, where `propose` finds fewer than k"""
    target, k, questions, expected, scenes = reader(case), 4, [], [], []
    for m in (0, 2, 1) * 3:
        text, guess = case.integers(0, 7, 5).tolist(), case.integers(0, 7, m)
        u = case.rand(2 * k + 1)
        p = after(target, text + guess.tolist(), 1.0)[4:]
        certain = functional.one_hot(guess, 7).to(p)
        questions.append((text, guess.tolist(), k, u))
        expected.append(judged(p, certain, guess.tolist(), u[k:].tolist()))
        scenes.append(
            f"A step of k = {k} for which propose finds {guess.tolist()}, without a choice"
        )
    found = steps_with(speculators, (target, reader(case), 40), questions)
    tell_rows(scenes, [new for new, _ in found], expected, "new tokens where fewer are drafted")
    noted = [history for _, history in found]
    pairs_wanted = [
        [(len(guess), len(right) - 1)]
        for (_, guess, *_), right in zip(questions, expected, strict=True)
    ]
    tell_history(noted, pairs_wanted, "history where fewer are drafted")


class PlainSpeculator:
    """Take steps without any cache, and count what caches would hold."""

    def __init__(self, target, draft, capacity: int, temperature: float):
        self.models, self.temperature = (target, draft), temperature
        self.lengths, self.history = (0, 0), []

    def speculative_step(self, text: Tensor, k: int, u: Tensor) -> Tensor:
        """Add tokens."""
        before = text.tolist()
        new = step_by_hand(*self.models, before, k, u.tolist(), self.temperature)
        kept = len(before) + len(new) - 1
        self.lengths = kept, min(kept, len(before) + k - 1) if k else self.lengths[1]
        self.history.append((k, len(new) - 1))
        return torch.tensor(new)

    def rollback(self, length: int) -> None:
        """Forget all but the first tokens."""
        self.lengths = tuple(min(length, each) for each in self.lengths)


class Speculating:
    """A text at temperature {0}"""

    def __init__(self, speculators, temperature: float, target, draft, text: list[int]):
        self.one = speculators(target, draft, 200, temperature)
        self.text = text

    def step(self, k: int, u: list[float]) -> list[int]:
        """a step of {0} drafts"""
        numbers = torch.tensor(u, dtype=torch.float64)
        new = self.one.speculative_step(torch.tensor(self.text), k, numbers)
        self.text = self.text + as_list(new, "the new tokens")
        return as_list(new, "the new tokens")

    def change(self, back: int, tokens: list[int]) -> None:
        """rollback, so that the last {0} tokens of the text are replaced by {1}"""
        keep = max(len(self.text) - back, 0)
        self.one.rollback(keep)
        self.text = self.text[:keep] + tokens

    def look(self) -> dict[str, object]:
        target, draft = self.one.lengths
        noted = pairs(self.one.history, "history")
        return {
            "the tokens in the target's cache": number(target, "lengths"),
            "the tokens in the draft's cache": number(draft, "lengths"),
            "the entries of the history": len(noted),
            "the last entry of the history": noted[-1:],
        }


@together
def speculations(speculators, programs: list[Program]) -> list:
    """Play programs with a student's class."""
    return [played(Speculating(speculators, *settings), calls) for settings, calls in programs]


def speculation_programs(case: Case, count: int, length: int) -> list[Program]:
    """Draw programs of steps and changes of the text."""
    programs: list[Program] = []
    for n in range(count):
        target, calls = reader(case), []
        draft = near(case, target) if n % 2 else reader(case)
        for _ in range(length):
            k = int(case.integers(0, 5, 1))
            calls.append(("step", k, case.rand(2 * k + 1).tolist()))
            if float(case.rand(1)) < 0.3:
                calls.append(
                    ("change", int(case.integers(0, 6, 1)), case.integers(0, 7, 2).tolist())
                )
        text = case.integers(0, 7, 4).tolist()
        programs.append((((0.0, 1.0, 0.6)[n % 3], target, draft, text), calls))
    return programs


@check(Speculator, weight=2, see="Forget what is not the text")
def programs(speculators, case):
    """stays right over many steps, also where the text is changed between them"""
    drawn = speculation_programs(case, 4, 4)
    follow(speculators, PlainSpeculator, speculations, Speculating, drawn)


def looked_up(tokens: list[int], k: int, longest: int = 3) -> list[int]:
    """Look up by comparing all places; go on with the distance between the two."""
    for n in range(longest, 0, -1):
        ends = [t for t in range(n, len(tokens)) if tokens[t - n : t] == tokens[-n:]]
        if ends and n < len(tokens):
            found, distance = list(tokens), len(tokens) - ends[-1]
            for _ in range(k):
                found.append(found[-distance])
            return found[len(tokens) :]
    return []


def compare_guesses(case: Case, look_up, questions: list[tuple], what: str) -> None:
    """Compare guesses for several texts; short rows are filled up with -1."""
    rows = [numbers(found, "the guess") for found in of_each(look_up, questions)]
    text = "Not every guess should be empty, yours are. Do the last tokens find themselves?"
    case.that(any(rows), text)
    scenes = [
        f"After {tokens}, " + ", ".join(map("{} = {}".format, ("k", "longest"), limits))
        for tokens, *limits in questions
    ]
    tell_rows(scenes, rows, [looked_up(*each) for each in questions], what)


@check(prompt_lookup, weight=2, see="The text drafts for itself")
def followed(look_up, case):
    """guesses what followed the longest run of last tokens that came before"""
    texts_of = [case.integers(0, 4, 30).tolist() for _ in range(12)]
    questions = [(text, 4) for text in texts_of]
    compare_guesses(case, look_up, questions, "guesses for 12 texts of 4 different tokens")


@check(prompt_lookup, see="The text drafts for itself")
def latest(look_up, case):
    """takes the latest of several places"""
    questions = [
        ([1, 2, 3, n, 1, 2, 3, n + 1, 0, 1, 2, 3, n + 2, 9, 1, 2, 3], 2) for n in range(20, 26)
    ]
    compare_guesses(case, look_up, questions, "guesses where the last tokens came three times")


@check(prompt_lookup, see="The text drafts for itself")
def longest_first(look_up, case):
    """prefers a longer run that came earlier to a shorter one that came later"""
    questions = [([5, 6, 7, n, 0, 6, 7, n + 1, 0, 7, n + 2, 0, 5, 6, 7], 3) for n in range(20, 23)]
    questions += [
        ([5, 6, n, 0, 6, n + 1, 0, 5, 6], 3, longest) for n in (20, 30) for longest in (1, 2, 4)
    ]
    compare_guesses(case, look_up, questions, "guesses where a longer run came earlier")


@check(prompt_lookup, see="The text drafts for itself")
def into_itself(look_up, case):
    """goes on with what it has guessed where the text ends"""
    questions = [([n] * 4, 5) for n in (1, 2)] + [([1, 2, n] * 3, 7) for n in (5, 6)]
    questions += [([n, n, 0, n, n, n], 4) for n in (7, 8, 9)]
    compare_guesses(case, look_up, questions, "guesses for texts that repeat themselves")


@check(prompt_lookup, see="The text drafts for itself")
def nothing(look_up, case):
    """guesses nothing after a token that is new"""
    for text in ([], [3], [1, 2, 1, 2, 3]):
        case.that(look_up(text, 0) == [], "The guess of 0 tokens should be empty, yours is not.")
        found = look_up(text, 3)
        case.that(found == [], f"The guess after {text} should be empty, yours is {found}.")


@check(prompt_lookup, see="The text drafts for itself")
def refuses(look_up, case):
    """raises ValueError for numbers that are too small"""
    for text in ([1, 2, 1], []):
        case.raises(ValueError, lambda t=text: look_up(t, -1), "k is -1")
        case.raises(ValueError, lambda t=text: look_up(t, 2, 0), "longest is 0")


@once
def plain(target: SmallReader, text: list[int], count: int) -> list[int]:
    """Add the best tokens, one by one."""
    whole = list(text)
    for _ in range(count):
        whole.append(int(after(target, whole, 0.0)[-1].argmax()))
    return whole


@once
def by_hand(
    target: SmallReader,
    draft: SmallReader | None,
    text: list[int],
    count: int,
    k: int,
    temperature: float,
    seed: int,
) -> list[int]:
    """Write a text without caches, with the numbers that a generator of this seed draws."""
    generator, whole = torch.Generator().manual_seed(seed), list(text)
    while len(whole) < len(text) + count:
        m = min(k, len(text) + count - len(whole) - 1)
        u = torch.rand(2 * m + 1, generator=generator, dtype=torch.float64).tolist()
        whole += step_by_hand(target, draft, whole, m, u, temperature)
    return whole


@together
def written(one, text: list[int], count: int, k: int, generator=None) -> list[int]:
    """Let a student's writer write."""
    found = one.speculative_generate(torch.tensor(text), count, k, generator)
    return as_list(found, "the text")


@together
def written_anew(writers, questions: list[tuple]) -> list[list[int]]:
    """Let a new writer write each of several texts: its settings, and what it is asked for."""
    return [written(writers(*settings), *asked) for settings, *asked in questions]


def told(questions: list[tuple], before: str = "") -> list[str]:
    """Tell the texts that new writers are asked for: their settings, text, count, and k."""
    scenes = []
    for (_, draft, _, temperature), text, count, k, *_ in questions:
        how = "without a draft model" if draft is None else "with a draft model"
        how += f", k = {k}, at temperature {temperature}"
        scenes.append(f"{before}{len(text)} tokens continued by {count}, {how}")
    return scenes


@check(SpeculativeWriter, weight=2, see="A whole text")
def greedy(writers, case):
    """writes what the target writes alone at temperature 0, of exactly `count` tokens"""
    target = reader(case)
    questions, expected = [], []
    for draft in (near(case, target), reader(case)):
        for count, k in ((1, 3), (6, 2), (11, 3), (10, 4)):
            text = case.integers(0, 7, 3).tolist()
            questions.append(((target, draft, 40, 0.0), text, count, k))
            expected.append(plain(target, text, count))
    tell_rows(told(questions), written_anew(writers, questions), expected, "texts at temperature 0")


@check(SpeculativeWriter, weight=2, see="A whole text")
def draws(writers, case):
    """writes the text that a step after the other without caches makes of the same numbers"""
    target = reader(case)
    questions, expected = [], []
    for seed in range(4):
        draft, text = near(case, target), case.integers(0, 7, 4).tolist()
        generator = torch.Generator().manual_seed(seed)
        questions.append(((target, draft, 40, 0.8), text, 12, 3, generator))
        expected.append(by_hand(target, draft, text, 12, 3, 0.8, seed))
    rows = written_anew(writers, questions)
    tell_rows(told(questions), rows, expected, "texts at temperature 0.8")


@check(SpeculativeWriter, weight=2, see="A whole text")
def from_itself(writers, case):
    """drafts from the text itself when there is no draft model"""
    target = reader(case, V=4)
    questions, expected = [], []
    for seed, temperature in enumerate((0.0, 1.0, 0.5, 1.0, 2.0)):
        text, generator = case.integers(0, 4, 6).tolist(), torch.Generator().manual_seed(seed)
        questions.append(((target, None, 40, temperature), text, 14, 3, generator))
        expected.append(by_hand(target, None, text, 14, 3, temperature, seed))
    rows = written_anew(writers, questions)
    tell_rows(told(questions), rows, expected, "texts without a draft model")


@check(SpeculativeWriter, see="A whole text")
def no_more_than_needed(writers, case):
    """drafts no more than can be kept, so that the capacity is never exceeded"""
    target = reader(case)
    one = writers(target, target, 4 + 10, 1.0)
    text = case.integers(0, 7, 4).tolist()
    try:
        written(one, text, 11, 4)
    except Failure as failure:
        if "ValueError" in failure.kinds:
            failure.message = (
                "4 tokens and 11 to come are 15, of which 14 have to be read, as its last token is "
                f"never read: they fit into caches for 14. {failure.message}"
            )
        raise
    found, right = pairs(one.history, "history"), [(4, 4), (4, 4), (0, 0)]
    given = ", ".join(f"{m} drafts, {n} accepted" for m, n in found)
    text = (
        "With 11 tokens to come, k = 4 and a draft that is the target, the steps should have 4, 4 "
    )
    case.that(found == right, f"{text}and no drafts, all accepted; yours: {given or 'none'}.")


@together
def written_in_turn(writers, settings: tuple, questions: list[tuple]) -> tuple[list, list]:
    """Let one writer write texts, and read its history."""
    one = writers(*settings)
    rows = [written(one, *question) for question in questions]
    return rows, pairs(one.history, "history")


@check(SpeculativeWriter, see="A whole text")
def again(writers, case):
    """writes another text with the same caches as if they were new, and adds to the history"""
    target = reader(case)
    for draft in (near(case, target), target):
        questions, expected = [], []
        for length, k in ((5, 3), (30, 2), (55, 4)):  # each longer than what was read before it
            text = case.integers(0, 7, length).tolist()
            questions.append((text, 14, k))
            expected.append(plain(target, text, 14))
        settings = target, draft, 80, 0.0
        rows, found = written_in_turn(writers, settings, questions)
        scenes = told([(settings, *question) for question in questions], "One writer's ")
        scenes = [f"Text {n + 1} of three. {scene}" for n, scene in enumerate(scenes)]
        tell_rows(scenes, rows, expected, "three texts of one writer at temperature 0")
        alone = [written_in_turn(writers, settings, [question])[1] for question in questions]
        what = "drafted and accepted tokens of all steps of the three texts"
        tell_history([found], [[tuple(row) for rows in alone for row in rows]], what)


@check(SpeculativeWriter, see="A whole text")
def shorter(writers, case):
    """writes a text that is shorter than the one before it"""
    target = reader(case)
    settings = target, near(case, target), 40, 0.0
    questions = [(case.integers(0, 7, length).tolist(), 9, 3) for length in (20, 4)]
    rows, _ = written_in_turn(writers, settings, questions)
    scenes = told([(settings, *question) for question in questions], "One writer's ")
    expected = [plain(target, text, count) for text, count, _ in questions]
    tell_rows(scenes, rows, expected, "two texts of one writer, the second shorter")


@check(SpeculativeWriter, see="The text drafts for itself")
def nothing_found(writers, case):
    """drafts no tokens, of the text's dtype, where nothing is found in it"""
    one = writers(reader(case), None, 20, 1.0)
    for dtype in (torch.int64, torch.int32):
        text = torch.tensor([3, 1, 4], dtype=dtype)
        drafted, q = case.unpack(one.propose(text, 3, case.rand(3)), "drafted", "q")
        case.shape(drafted, (0,), "drafted, where nothing is found,")
        what = f"drafted, where nothing is found, should be {dtype} as the text is"
        case.that(drafted.dtype == dtype, f"{what}, yours is {drafted.dtype}.")
        case.that(q is None, f"q should be None without a draft model, yours is {describe(q)}.")


@check(SpeculativeWriter, see="A whole text")
def refuses(writers, case):
    """raises ValueError for what cannot be written, and changes nothing then"""
    target = reader(case)
    one, text = writers(target, near(case, target), 9, 0.0), case.integers(0, 7, 4).tolist()
    rows = [written(one, text, 6, 3)]
    lengths = list(case.unpack(one.lengths, "target", "draft"))
    for tokens, count in ((text, 7), ([], 3)):
        empty = torch.tensor(tokens, dtype=torch.long)
        case.raises(
            ValueError,
            lambda t=empty, n=count: one.speculative_generate(t, n, 3),
            f"{len(tokens)} tokens are given, {count} to be added, and there is room for 9",
        )
    scene = "After a text of 10 tokens comes one that is refused"
    what = "lengths of the caches after an error"
    tell_lengths([list(case.unpack(one.lengths, "target", "draft"))], [lengths], [scene], what)
    counts = (6, 0, 1)
    rows += [written(one, text, count, 3) for count in counts[1:]]
    expected = [plain(target, text, count) for count in counts]
    scenes = [f"4 tokens continued by {count}" for count in counts]
    tell_rows(scenes, rows, expected, "texts of 6, 0 and 1 more tokens")


@check(SpeculativeWriter, see="A whole text")
def own_randomness(writers, case):
    """draws with torch's own generator when none is given"""
    target, text = reader(case), case.integers(0, 7, 4).tolist()
    draft, rows, expected = near(case, target), [], []
    for seed in (3, 4):
        torch.manual_seed(seed)
        rows.append(written(writers(target, draft, 40), text, 12, 3))
        expected.append(by_hand(target, draft, text, 12, 3, 1.0, seed))
    scenes = [f"4 tokens continued by 12 after torch.manual_seed({seed})" for seed in (3, 4)]
    tell_rows(scenes, rows, expected, "texts from torch's own generator")


@check(SpeculativeWriter, see="One step")
def what_was_found(writers, case):
    """notes as drafted what was found in the text, not what was asked for"""
    text, generator = torch.randperm(7, generator=case.generator), torch.Generator().manual_seed(1)
    questions = [(text.tolist(), 14, 3, generator)]
    (row,), history = written_in_turn(writers, (reader(case), None, 40, 1.0), questions)
    expected, at = [], len(text)
    for _, accepted in history:
        expected.append(len(looked_up(row[:at], min(3, len(row) - at - 1))))
        at += accepted + 1
    same(case, [m for m, _ in history], expected, "drafted tokens of each step, without a draft")


ALPHAS = [0.0, 0.2, 0.5, 0.83, 0.97]


@check(expected_tokens, weight=2, see="How many tokens a step adds")
def mean(expected, case):
    """is the mean of the tokens of all ways that a step can go"""
    ks = (0, 1, 2, 5, 9)
    found = of_each(expected, [(alpha, k) for alpha in ALPHAS for k in ks])
    given = torch.tensor([float(each) for each in found]).double().view(len(ALPHAS), len(ks))
    ways = [
        [sum((n + 1) * a**n * (1 - a if n < k else 1) for n in range(k + 1)) for k in ks]
        for a in ALPHAS
    ]
    what = f"tokens for alpha = {ALPHAS} and k = {list(ks)}"
    case.equal(given, torch.tensor(ways).double(), what)


@check(expected_tokens, see="How many tokens a step adds")
def always_right(expected, case):
    """is k + 1 for a draft that is always right, and 1 without one"""
    found = of_each(expected, [*((1.0, k) for k in range(8)), (0.4, 0)])
    given = [float(each) for each in found]
    wanted = [float(k + 1) for k in range(8)] + [1.0]
    case.equal(
        torch.tensor(given), torch.tensor(wanted), "tokens for alpha = 1, k = 0 … 7; and k = 0"
    )


@check(expected_tokens, see="How many tokens a step adds")
def refuses(expected, case):
    """raises ValueError for what is no probability, and for a negative k"""
    for alpha, k in ((-0.01, 2), (1.01, 2), (0.5, -1), (1.0, -1), (0.0, -1)):
        case.raises(ValueError, lambda a=alpha, n=k: expected(a, n), f"alpha is {alpha} and k {k}")
    given = [float(expected(alpha, k)) for alpha in (0, 1) for k in (0, 1, 3)]
    case.equal(torch.tensor(given), torch.tensor([1.0, 1, 1, 1, 2, 4]), "tokens for alpha 0 and 1")


@once
def best_by_hand(alpha: float, cost: float, most: int) -> int:
    """Try all lengths; a longer one must be better by more than rounding."""
    best, value = 0, 1.0
    for k in range(1, most + 1):
        speed = sum(alpha**n for n in range(k + 1)) / (1 + k * cost)
        if speed > value * (1 + 1e-9):
            best, value = k, speed
    return best


def compare_lengths(case: Case, choose, questions: list[tuple], what: str) -> None:
    """Compare the best lengths."""
    given = [number(length, "the length") for length in of_each(choose, questions)]
    wanted = [best_by_hand(*each, *([32] if len(each) == 2 else [])) for each in questions]
    same(case, given, wanted, what)


@check(best_draft_length, weight=2, see="How many tokens to draft")
def most_for_the_time(choose, case):
    """chooses the length with the most tokens for the time"""
    questions = [(a, c) for a in (0.5, 0.6, 0.8, 0.9) for c in (0.02, 0.1, 0.24)]
    compare_lengths(case, choose, questions, "lengths for 12 pairs of alpha and cost")


@check(best_draft_length, see="How many tokens to draft")
def not_at_all(choose, case):
    """chooses 0 where a draft costs more than it brings"""
    questions = [(a, c) for c in (0.45, 0.6, 0.9) for a in (c - 0.05, c + 0.05, 0.99)]
    questions += [(0, 0.1), (1, 1)]
    compare_lengths(case, choose, questions, "lengths for alpha below and above the cost")


@check(best_draft_length, see="How many tokens to draft")
def at_most(choose, case):
    """considers lengths up to `most`, that one too"""
    questions = [
        (1.0, 0.3, 5),
        (1.0, 0.3),
        (0.9, 0.01, 3),
        (0.9, 0.01, 40),
        (0.7, 0, 1),
        (0.7, 0, 0),
    ]
    compare_lengths(case, choose, questions, "lengths for several `most`")


@check(best_draft_length, see="How many tokens to draft")
def refuses(choose, case):
    """raises ValueError for a negative cost, and for what is no probability"""
    for alpha, cost in ((0.5, -0.01), (1.2, 0.1), (-0.2, 0.1)):
        case.raises(
            ValueError, lambda a=alpha, c=cost: choose(a, c), f"alpha is {alpha}, cost {cost}"
        )


def path_to(parents: list[int], node: int) -> list[int]:
    """Walk from a node up to the root; return the nodes from the root on."""
    path = []
    while node >= 0:
        path.insert(0, node)
        node = parents[node]
    return path


def drawn_parents(case: Case, M: int) -> list[int]:
    """Draw a tree of M nodes."""
    return [-1, *(int(case.integers(0, node, 1)) for node in range(1, M))]


def mask_by_walking(parents: list[int], past: int) -> Tensor:
    """Set place by place what each node sees."""
    seen = [
        [s < past or s - past in path_to(parents, i) for s in range(past + len(parents))]
        for i in range(len(parents))
    ]
    return torch.tensor(seen)


def compare_masks(case: Case, masks, trees: list[tuple[list[int], int]], what: str) -> None:
    """Compare the masks of several trees."""
    for (parents, past), found in zip(trees, of_each(masks, trees), strict=True):
        case.equal(found, mask_by_walking(parents, past), f"the mask of {what} {parents}, {past}")


@check(tree_mask, weight=3, see="A tree of drafts")
def ancestors(masks, case):
    """lets each node see its ancestors, itself, what is before the tree, and nothing else"""
    trees = [(drawn_parents(case, M), past) for M, past in ((7, 2), (9, 4), (12, 3))]
    compare_masks(case, masks, trees, "parents, past =")


@check(tree_mask, see="A tree of drafts")
def chains(masks, case):
    """is the causal mask for a chain, and hides siblings from each other"""
    M = case.sizes(1, low=4)[0]
    trees = [([*range(-1, M - 1)], 0), ([*range(-1, M - 1)], 3), ([-1, *[0] * M], 2), ([-1], 4)]
    compare_masks(case, masks, trees, "parents, past =")


def small_llama(case: Case, V: int) -> Llama:
    """Draw a small model that is sure of what it says."""
    model = Llama(V, D=12, H=3, G=1, L=2, F=10).double()
    for weight in model.parameters():
        weight.data = case.randn(*weight.shape) / weight.shape[0] ** 0.5
    model.token.weight.data *= 3
    model.W_head.data *= 4
    return model


@check(tree_mask, weight=2, see="A tree of drafts")
def as_if_alone(masks, case):
    """gives a Llama, in one pass, the logits that it gives after each path alone"""
    model, past = small_llama(case, 7), 5
    parents = drawn_parents(case, 8)
    before, tokens = case.integers(0, 7, past), case.integers(0, 7, 8)
    mask = masks(parents, past)
    case.shape(mask, (8, 8 + past), "the mask")
    case.that(mask.dtype == torch.bool, f"The mask should be boolean, yours is {mask.dtype}.")
    paths = [torch.cat([before, tokens[path_to(parents, node)]]) for node in range(8)]
    with torch.no_grad():
        alone = torch.stack([model(path[None])[0, -1] for path in paths])
    case.equal(read_tree(model, before, tokens, mask), alone, "logits after each node")


@check(tree_mask, see="A tree of drafts")
def refuses(masks, case):
    """raises ValueError for a root with a parent, and for a parent that is not before its child"""
    for parents in ([0, 0], [-2, 0], [-1, 1], [-1, -1], [-1, 0, 3, 1], [-1, 0, -2]):
        case.raises(ValueError, lambda parents=parents: masks(parents), f"parents is {parents}")


def drawn_tree(case: Case, M: int, V: int = 4) -> tuple[list[int], list[int], list[int]]:
    """Draw parents, tokens that differ among siblings, and best tokens that often are a child's."""
    parents, tokens = [-1], [int(case.integers(0, V, 1))]
    while len(parents) < M:
        parent, token = int(case.integers(0, len(parents), 1)), int(case.integers(0, V, 1))
        if (parent, token) not in list(zip(parents, tokens, strict=True))[1:]:
            parents.append(parent)
            tokens.append(token)
    best = case.integers(0, V, M).tolist()
    for node in range(M):
        children = [child for child in range(1, M) if parents[child] == node]
        if children and float(case.rand(1)) < 0.8:
            best[node] = tokens[children[int(case.integers(0, len(children), 1))]]
    return parents, tokens, best


def longest_path(parents: list[int], tokens: list[int], best: list[int]) -> list[int]:
    """Try the paths to all nodes: the longest on which each token is the best after its parent."""
    paths = [path_to(parents, node) for node in range(len(parents))]
    right = [
        path for path in paths if all(tokens[b] == best[a] for a, b in itertools.pairwise(path))
    ]
    return max(right, key=len)


def compare_paths(case: Case, accept, trees: list[tuple], what: str) -> None:
    """Compare the paths that are accepted in several trees."""
    rows = [numbers(found, "the path") for found in of_each(accept, trees)]
    scenes = [f"Parents {parents}, tokens {t}, best {b}" for parents, t, b in trees]
    tell_rows(scenes, rows, [longest_path(*tree) for tree in trees], what)


@check(accept_path, weight=3, see="Which path is accepted")
def follows(accept, case):
    """gives the nodes of the longest path that the target would have written"""
    trees = [drawn_tree(case, M) for M in (4, 6, 8, 8, 10, 10, 12, 12)]
    compare_paths(case, accept, trees, "paths of eight trees")


@check(accept_path, see="Which path is accepted")
def any_child(accept, case):
    """finds a child that is not the first, and one whose number is not the next"""
    a, b, c, d = torch.randperm(9, generator=case.generator)[:4].tolist()
    trees = [
        ([-1, 0, 0, 0], [d, a, b, c], [c, a, a, d]),
        ([-1, 0, 0, 2, 1, 2, 5], [d, a, b, a, b, c, d], [b, b, c, a, a, d, a]),
        ([-1, 0, 1, 0, 3], [a, a, a, b, a], [b, a, a, a, c]),
    ]
    compare_paths(case, accept, trees, "paths that leave the first child")


@check(accept_path, see="Which path is accepted")
def ends(accept, case):
    """is the root alone where no child is right, and goes to the last node where all are"""
    a, b, c = torch.randperm(9, generator=case.generator)[:3].tolist()
    trees = [
        ([-1], [a], [a]),
        ([-1, 0, 0], [a, a, b], [c, a, b]),
        ([-1, 0, 1, 2], [a, b, c, a], [b, c, a, b]),
        ([-1, 0, 1, 2], [a, b, c, a], [c, c, a, b]),  # what comes after a wrong one counts no more
        ([-1, 0, 0, 1, 2], [c, a, b, c, c], [b, c, a, a, a]),
    ]
    compare_paths(case, accept, trees, "paths that end at the root, halfway and at a leaf")


@check(accept_path, weight=2, see="Which path is accepted")
def plain_generation(accept, case):
    """adds the tokens that the model writes alone, whatever the tree is"""
    V, past = 3, 4
    model, scenes, rows, expected, trees = small_llama(case, V), [], [], [], []
    for M in (6, 9, 12):
        parents, tokens, _ = drawn_tree(case, M, V)
        before = case.integers(0, V, past)
        mask = mask_by_walking(parents, past)
        best = read_tree(model, before, torch.tensor(tokens), mask).argmax(dim=1).tolist()
        trees.append((parents, tokens, best))
        text = torch.cat([before, torch.tensor(tokens[:1])])
        with torch.no_grad():
            for _ in range(M):
                text = torch.cat([text, model(text[None])[0, -1].argmax()[None]])
        expected.append(text[past + 1 :].tolist())
        scenes.append(f"Parents {parents}, tokens {tokens}, best {best}: new tokens")
    for found, (_, _, best) in zip(of_each(accept, trees), trees, strict=True):
        path = numbers(found, "the path")
        wrong = [node for node in path if not 0 <= node < len(best)]
        if wrong or not path:
            raise Failure(f"A path of nodes 0 … {len(best) - 1} should come, yours is {path}.")
        rows.append([best[node] for node in path])
    plain = [right[: len(row)] for right, row in zip(expected, rows, strict=True)]
    tell_rows(scenes, rows, plain, "new tokens of three trees")
    for (parents, tokens, best), row in zip(trees, rows, strict=True):
        count = len(longest_path(parents, tokens, best))
        text = f"Parents {parents}, tokens {tokens}, best {best}: {count} new tokens should come"
        case.that(len(row) == count, f"{text}, yours are {len(row)}.")


@check(accept_path, see="Which path is accepted")
def refuses(accept, case):
    """raises ValueError for lists of different lengths"""
    parents, tokens, best = drawn_tree(case, 5)
    for wrong in (
        (parents, tokens[:4], best),
        (parents, tokens, best[:4]),
        (parents[:4], tokens, best),
    ):
        sizes = " ".join(str(len(each)) for each in wrong)
        case.raises(ValueError, lambda wrong=wrong: accept(*wrong), f"the lengths are {sizes}")


def partly(text: list[int], right: list[int], every: int, V: int = 29) -> list[int]:
    """A continuation of which every so many tokens are wrong."""
    tail = right[len(text) :]
    return text + [(x + (n % every == every - 1)) % V for n, x in enumerate(tail)]


def known(model, prompts: list[list[int]], count: int) -> list[list[int]]:
    """Whole texts, as plain generation writes them."""
    return [text + plain_tokens(model, text, count) for text in prompts]


@check(SpeculativeCore, weight=3, see="Several tokens for each of many")
def plain_generation(engines, case):
    """adds the tokens that plain generation adds, with drafts from the text"""
    model, prompts = small_model(case, L=1), texts(case, 5, 1, 8, 11, 4, V=3)
    expected = [plain_tokens(model, prompt, 12) for prompt in prompts]
    for S, k, limits in (
        (4, 4, {}),
        (1, 2, {}),
        (4, 4, {"max_num_seqs": 3, "max_num_batched_tokens": 9}),
    ):
        engine = engines(model, EngineConfig(80, S, **limits), k=k)
        rows = serve(engine, prompts, SamplingParams(12))
        tell_served(prompts, rows, expected, f"tokens with {listed(block_size=S, k=k, **limits)}")


def tell_served(prompts: list, rows: list, expected: list, what: str) -> None:
    """Compare the tokens that some prompts get, one of them told in words."""
    many = len(prompts)
    scenes = [
        f"{what}: sequence {n + 1} of {many}, with a prompt of {len(prompt)}"
        for n, prompt in enumerate(prompts)
    ]
    tell_rows(scenes, rows, expected, what)


@check(SpeculativeCore, weight=2, see="Several tokens for each of many")
def different_numbers(engines, case):
    """accepts as many tokens of each sequence as are right, in the same step"""
    model, prompts = small_model(case, L=1), texts(case, 5, 3, 8)
    whole = known(model, prompts, 21)
    drafts_of = [
        partly(text, right, every)
        for text, right, every in zip(prompts, whole, (3, 99, 1), strict=True)
    ]
    engine = engines(model, EngineConfig(80, 4), k=4, propose=SmallDraft(drafts_of))
    begun = [number(engine.add(prompt, SamplingParams(21)), "add") for prompt in prompts]
    rows, counts = {each: [] for each in begun}, []
    for found in steps_of(engine, 6):
        for each, token in found:
            rows.setdefault(each, []).append(token)
        counts.append([sum(each == one for one, _ in found) for each in begun])
    rows = run(engine, rows)
    expected = [right[len(text) :] for text, right in zip(prompts, whole, strict=True)]
    tell_served(prompts, [rows[each] for each in begun], expected, "tokens of three sequences")
    wanted, what = counts_by_hand(prompts, whole, drafts_of), "tokens of each sequence in six steps"
    for step, (found, right) in enumerate(zip(counts, wanted, strict=True)):
        if found != right:
            text = (
                f"In step {step + 1} the sequences should get {right} tokens, as many drafts are "
            )
            text += f"right and one more, yours get {found}."
            raise Failure(text, what=what, observed=torch.tensor(counts))


@together
def steps_of(engine, count: int) -> list[list[tuple[int, ...]]]:
    """Take steps: the tokens of each."""
    return [pairs(engine.step(), "step") for _ in range(count)]


def counts_by_hand(prompts: list, whole: list, drafts_of: list, k: int = 4) -> list[list[int]]:
    """Say how many tokens each sequence gets in each of six steps."""
    lengths, rows = [len(text) + 1 for text in prompts], [[1] * len(prompts)]
    for _ in range(5):
        rows.append([])
        for place, (right, guess) in enumerate(zip(whole, drafts_of, strict=True)):
            at = lengths[place]
            stop = at + min(k, max(len(right) - at - 1, 0))
            n = next((n for n in range(at, stop) if guess[n] != right[n]), stop) - at
            rows[-1].append(min(n + 1, len(right) - at))
            lengths[place] += rows[-1][-1]
    return rows


def wrong_drafts(prompts: list, whole: list, every: int) -> SmallDraft:
    """Known texts of which every so many tokens are wrong."""
    parts = zip(prompts, whole, strict=True)
    return SmallDraft([partly(text, right, every) for text, right in parts])


@together
def kept_after_a_step(engine, sequences: list[int]) -> tuple[list[int], list[int]]:
    """Take a step; read of some sequences their tokens but the last, what is kept, free blocks."""
    engine.step()
    lengths, kept = [], []
    for each in sequences:
        lengths.append(len(numbers(record(engine, each).tokens, "tokens")) - 1)
        length, *blocks = tables(engine, each)[0]
        kept += [length, len(blocks), number(record(engine, each).num_computed, "computed")]
    return lengths, [*kept, free_blocks(engine)]


@together
def state_of(engine, sequences: list[int]) -> list[int]:
    """Read of some sequences their tables' lengths and tokens; then free blocks and drafted."""
    found = [[tables(engine, each)[0][0], len(record(engine, each).tokens)] for each in sequences]
    return [*flat(found), free_blocks(engine), number(engine.drafted, "drafted")]


@check(SpeculativeCore, weight=2, see="What rejected drafts leave behind")
def gives_back(engines, case):
    """keeps blocks only for what is computed of each sequence's own tokens"""
    model, prompts = small_model(case, L=1), texts(case, 5, 3)
    whole = known(model, prompts, 20)
    engine = engines(model, EngineConfig(40, 2), k=5, propose=wrong_drafts(prompts, whole, 2))
    begun = [number(engine.add(prompt, SamplingParams(20)), "add") for prompt in prompts]
    found, expected = [], []
    for _ in range(7):
        lengths, kept = kept_after_a_step(engine, begun)
        found.append(kept)
        expected.append(flat([[length, math.ceil(length / 2), length] for length in lengths]))
        expected[-1].append(40 - sum(math.ceil(length / 2) for length in lengths))
    tell_kept(found, expected, "what is kept of two sequences after each of seven steps")


def tell_kept(found: list[list[int]], expected: list[list[int]], what: str) -> None:
    """Compare what is kept of sequences after each step, and the free blocks."""
    names = ("its table should hold {} tokens", "it should have {} blocks", "computed should be {}")
    for step, (given, right) in enumerate(zip(found, expected, strict=True)):
        if given == right:
            continue
        n = [a == b for a, b in zip(given, right, strict=True)].index(False)
        text = f"After step {step + 1}, {right[n]} blocks should be free"
        if n < len(right) - 1:
            each, part = divmod(n, len(names))
            text = (
                f"After step {step + 1}, sequence {each + 1} has {right[3 * each] + 1} tokens, all "
            )
            text += f"but the last of them computed: {names[part].format(right[n])}"
        observed = torch.tensor(flat(found))
        raise Failure(f"{text}, yours is {given[n]}.", what=what, observed=observed)


@check(SpeculativeCore, weight=2, see="What rejected drafts leave behind")
def cached(engines, case):
    """leaves all that was written where later requests find it, and nothing wrong"""
    model, prompts = small_model(case, calls=900), texts(case, 5, 8, 3)
    whole = known(model, prompts, 18)
    rows, expected, hits, full = [], [], [], []
    for S, every in ((1, 2), (2, 3), (3, 2)):
        engine = engines(
            model, EngineConfig(99, S), k=3, propose=wrong_drafts(prompts, whole, every)
        )
        serve(engine, prompts, SamplingParams(12))
        before = number(engine.scheduler.hits, "hits")
        longer = [right[: len(text) + 11] for text, right in zip(prompts, whole, strict=True)]
        rows += serve(engine, longer, SamplingParams(5))
        expected += [
            right[len(text) + 11 :][:5] for text, right in zip(prompts, whole, strict=True)
        ]
        hits.append(number(engine.scheduler.hits, "hits") - before)
        full.append(sum((len(text) - 1) // S * S for text in longer))
    scenes = [
        f"Blocks of {S}; prompts are served with some wrong drafts, and then once more with what "
        f"they got: prompt {n + 1}"
        for S in (1, 2, 3)
        for n in range(len(prompts))
    ]
    tell_rows(scenes, rows, expected, "tokens that are added to what was written before")
    for S, given, right in zip((1, 2, 3), hits, full, strict=True):
        text = f"With blocks of {S}, {right} tokens that were written should be found in the cache"
        observed = torch.tensor(hits)
        case.that(given == right, f"{text}, yours finds {given}: which blocks are named?", observed)


@check(SpeculativeCore, weight=2, see="Several tokens for each of many")
def stops(engines, case):
    """ends a sequence with its stop token, also in the middle of what is accepted"""
    model, prompts = small_model(case, L=1), texts(case, 5, 3, 4)
    whole = known(model, prompts, 12)
    rows, expected, free = [], [], []
    for place in (4, 5, 6, 7):
        stop = whole[0][5 + place]
        engine = engines(model, EngineConfig(40, 4), k=4, propose=SmallDraft(whole))
        rows += serve(engine, prompts, SamplingParams(12, stop))
        expected += [plain_tokens(model, prompt, 12, stop) for prompt in prompts]
        free.append(free_blocks(engine))
    scenes = [
        f"Token {place + 1} after the first prompt is the stop token: sequence {n + 1} of 3"
        for place in (4, 5, 6, 7)
        for n in range(3)
    ]
    tell_rows(scenes, rows, expected, "tokens with four different stop tokens")
    text = "When all sequences have ended, all 40 blocks should be free, yours has"
    case.that(free == [40] * 4, f"{text} {min(free)} free.", torch.tensor(free))


@once
def sampled(
    model, text: list[int], sampling: SamplingParams, guess, k: int, seed: int
) -> list[int]:
    """Draw a sample without any cache, from the numbers that the engine draws."""
    generator, whole, first = torch.Generator().manual_seed(seed), list(text), True
    settings = sampling.temperature, sampling.top_k, sampling.top_p
    while (left := len(text) + sampling.max_tokens - len(whole)) > 0:
        drafted = [] if first or left == 1 else guess(whole, min(k, left - 1))
        so_far = range(len(whole), len(whole) + len(drafted) + 1)
        logits = torch.stack([plain_logits(model, (whole + drafted)[:n]) for n in so_far])
        p, first = token_probabilities(logits, *settings), False
        if drafted:
            u = torch.rand(len(p), generator=generator, dtype=torch.float64).tolist()
            whole += judged(p, torch.eye(p.shape[1])[drafted].double(), drafted, u)
        else:
            whole.append(int(torch.multinomial(p[0], 1, generator=generator)))
    return whole[len(text) :]


@check(SpeculativeCore, weight=2, see="Several tokens for each of many")
def samples(engines, case):
    """accepts or resamples when it samples, with the sequence's own settings and generator"""
    model, (prompt,) = small_model(case, V=7, calls=900, L=1), texts(case, 6, V=7)
    guess, rows, expected = SmallDraft(known(model, [prompt], 14)), [], []
    # Blocks of 4 for 6 tokens: the three samples share one that is half full.
    engine = engines(model, EngineConfig(99, 4), k=3, propose=guess)
    for settings in ({}, {"top_k": 3}, {"top_p": 0.8}):
        how = SamplingParams(14, None, 3, 4.0, seed=5, **settings)
        first = number(engine.add(prompt, how), "add")
        rows += run(engine, {first: []}).values()
        expected += [sampled(model, prompt, how, guess, 3, 5 + n) for n in range(3)]
    scenes = [
        f"Sample {n + 1} of three of one prompt, at temperature 4{how}"
        for how in ("", " with top_k = 3", " with top_p = 0.8")
        for n in range(3)
    ]
    tell_rows(scenes, rows, expected, "tokens of three samples, for three settings")


@check(SpeculativeCore, see="Several tokens for each of many")
def errors_leave_no_trace(engines, case):
    """is as it was when the model has raised while it judged drafts"""
    model, prompts = small_model(case, calls=3, L=1), texts(case, 4, 7)
    patient = small_model(case, L=1)
    guess = wrong_drafts(prompts, known(patient, prompts, 20), 2)
    engine = engines(model, EngineConfig(40, 2), k=3, propose=guess)
    begun = [engine.add(prompt, SamplingParams(20)) for prompt in prompts]
    for _ in range(3):
        engine.step()
    before = []
    for attempt in range(3):
        if attempt:
            case.raises(RuntimeError, engine.step, "the model fails")
        seen = state_of(engine, begun)
        for n in (1, 2) if not attempt else ():
            length, tokens = seen[2 * n - 2 : 2 * n]
            text = f"After three steps the table of sequence {n} should have {tokens - 1} slots"
            text += f", for all its tokens but the last, yours has {length}."
            case.that(length == tokens - 1, text, torch.tensor(seen))
        before = before or seen
        names = [
            f"{part} of sequence {n}" for n in (1, 2) for part in ("length of the table", "tokens")
        ]
        for name, given, right in zip(
            [*names, "free blocks", "drafted"], seen, before, strict=True
        ):
            text = (
                f"The model fails in a step: afterwards {name} should be {right} as before, yours"
            )
            case.that(given == right, f"{text} is {given}.", torch.tensor(seen))


@check(SpeculativeCore, see="Several tokens for each of many")
def limits(engines, case):
    """fills the cache to its last slot, and refuses what never fits"""
    model, (prompt,) = small_model(case, L=1), texts(case, 6)
    (right,) = known(model, [prompt], 7)
    engine = engines(model, EngineConfig(3, 4, 2), k=4, propose=SmallDraft([right]))
    rows = serve(engine, [prompt], SamplingParams(7))
    tell_served([prompt], rows, [right[6:]], "tokens when all 12 slots are needed")
    case.raises(NeverFits, lambda: engine.add(prompt, SamplingParams(8)), "13 slots are needed")
    counts = [number(engine.drafted, "drafted"), number(engine.accepted, "accepted")]
    text = "Four drafts, all of them right, make drafted 4 and accepted 4, yours are"
    case.that(counts == [4, 4], f"{text} {counts[0]} and {counts[1]}.", torch.tensor(counts))


@check(SpeculativeCore, see="Several tokens for each of many")
def stops_at_token_0(engines, case):
    """ends a sequence with its stop token, also if that is token 0"""
    stop = None
    while stop is None:  # it must come first among accepted drafts, of which it is not the last
        model, prompts = small_model(case, L=1), texts(case, 5, 3)
        plain = plain_tokens(model, prompts[0], 5)
        stop = next((plain[n] for n in (3, 2, 1) if plain[n] not in plain[:n]), None)
    order = list(range(29))
    order[0], order[stop] = stop, 0
    exchanged = SmallServed((model[0][order], *model[1:]))
    prompts = [[order[x] for x in text] for text in prompts]
    engine = engines(
        exchanged, EngineConfig(40, 4), k=4, propose=SmallDraft(known(exchanged, prompts, 12))
    )
    rows = serve(engine, prompts, SamplingParams(12, 0))
    expected = [plain_tokens(exchanged, prompt, 12, 0) for prompt in prompts]
    tell_served(prompts, rows, expected, "tokens with stop token 0")


@check(SpeculativeCore, see="What rejected drafts leave behind")
def only_the_last(engines, case):
    """gives a block back if of all drafts only the last was rejected"""
    model, prompts = small_model(case, L=1), texts(case, 5)
    engine = engines(
        model, EngineConfig(40, 1), k=3, propose=wrong_drafts(prompts, known(model, prompts, 24), 4)
    )
    begun = number(engine.add(prompts[0], SamplingParams(24)), "add")
    found, expected = [], []
    for _ in range(6):
        (length,), (_, blocks, _, free) = kept_after_a_step(engine, [begun])
        found.append([length, blocks, length, free])
        expected.append([length, length, length, 40 - length])
    tell_kept(found, expected, "blocks of a sequence and free blocks, after each of six steps")


@check(SpeculativeCore, see="Several tokens for each of many")
def pieces(engines, case):
    """makes one piece of a sequence's own tokens, and one of each draft"""
    model, (prompt,) = small_model(case, L=1), texts(case, 9)
    engine = engines(model, EngineConfig(40, 4))
    one = number(engine.add(prompt, SamplingParams(5)), "add")
    engine.step()
    own = numbers(record(engine, one).tokens, "tokens")
    _, *blocks = tables(engine, one)[0]
    found, expected = [], []
    for start, drafted in ((9, [3, 4]), (6, [5, 6]), (2, [])):
        found.append([])
        for row in engine.pieces(one, start, 10 + len(drafted), drafted):
            tokens, first, table = case.unpack(row, "tokens", "start", "blocks")
            first = number(first, "start")
            found[-1].append((numbers(tokens, "tokens"), first, numbers(table, "blocks")))
        expected.append([(own[start:], start, blocks)])
        expected[-1] += [([x], 10 + n, blocks) for n, x in enumerate(drafted)]
    starts = torch.tensor([start for rows in found for _, start, _ in rows])
    for rows, right in zip(found, expected, strict=True):
        start, stop = right[0][1], right[-1][1] + len(right[-1][0])
        text = f"The pieces of positions {start} to {stop - 1} should be {right}"
        case.that(rows == right, f"{text}, yours are {rows}.", starts)


def next_number(generator) -> float:
    """Say what a generator draws next, without letting it draw."""
    generator = unguarded(generator)
    if not isinstance(generator, torch.Generator):
        raise Failure(f"There should be a torch.Generator, yours is {describe(generator)}.")
    return float(torch.rand(1, generator=generator.clone_state()))


@together
def kept_one_by_one(engine, prompt: list[int], sampling: SamplingParams, kept: list) -> list[tuple]:
    """Let `keep` add tokens to a new sequence, step after step, as if they had been judged.

    Args:
        kept: (drafts that were planned, tokens to keep) for each step.
    Returns:
        After each: what it returns, the sequence's tokens, what is computed, its table's length,
        blocks, the free blocks, a number from its generator, and whether it runs.
    """
    one = number(engine.add(prompt, sampling), "add")
    engine.step()
    found = []
    for seed, (drafted, tokens) in enumerate(kept):
        engine.plan({one: drafted})
        result = pairs(engine.keep(one, tokens, torch.Generator().manual_seed(seed)), "keep")
        sequence = record(engine, one)
        table = sequence.block_table
        held = (0, 0) if table is None else (table.length, len(table.blocks))
        drawn = next_number(sequence.generator)
        runs = one in [*engine.scheduler.running]
        state = (
            numbers(sequence.tokens, "tokens"),
            sequence.num_computed,
            *held,
            free_blocks(engine),
        )
        found.append((result, *state, drawn, runs))
    return found


@check(SpeculativeCore, weight=2, see="What rejected drafts leave behind")
def keeps(engines, case):
    """keeps what was judged, and lets go of the rest, until a sequence has all its tokens"""
    model, (prompt,) = small_model(case, L=1), texts(case, 6)
    drafted = texts(case, 4, 4, 4, 3)
    kept = [(d, [*d[:n], 5]) for d, n in zip(drafted, (0, 2, 4, 3), strict=True)]
    count = 1 + sum(len(tokens) for _, tokens in kept)
    found = kept_one_by_one(
        engines(model, EngineConfig(20, 2), k=4), prompt, SamplingParams(count), kept
    )
    observed = torch.tensor([[*map(float, row[2:7]), float(row[7])] for row in found])
    text = found[0][1][:7]
    for step, ((d, tokens), row) in enumerate(zip(kept, found, strict=True)):
        text = text + tokens
        N, ends = len(text) - 1, step == len(kept) - 1
        blocks = 0 if ends else math.ceil(N / 2)
        drawn = next_number(torch.Generator().manual_seed(step))
        held = 0 if ends else N
        wanted = ([(row[0][0][0], x) for x in tokens], text, held, held, blocks, 20 - blocks, drawn)
        names = "what keep returns", "tokens", "computed", "the table's length", "blocks held"
        names += "free blocks", "what its generator draws next", "whether it runs"
        scene = f"Drafts {d} are planned, {tokens} kept; the sequence has {len(text)} tokens then"
        scene += ", all it may have" if ends else ", all but the last of them computed"
        for name, given, right in zip(names, row, (*wanted, not ends), strict=True):
            case.that(
                given == right, f"{scene}: {name} should be {right}, yours {given}.", observed
            )


@together
def judged_at_once(
    engine, prompt: list[int], how: SamplingParams, drafted: list, logits: list
) -> list:
    """Let `judge` decide of several drafts what a new sequence gets, without keeping it.

    Returns:
        The new tokens, and what the generator that comes with them, and the own one, draw next.
    """
    one = number(engine.add(prompt, how), "add")
    found = []
    for guess, rows in zip(drafted, logits, strict=True):
        new, generator = Case.unpack(
            unguarded(engine.judge(one, guess, rows)), "the new tokens", "a generator"
        )
        draws = next_number(generator), next_number(record(engine, one).generator)
        found.append((numbers(new, "the new tokens"), *draws))
    return found


@check(SpeculativeCore, weight=2, see="Several tokens for each of many")
def judges(engines, case):
    """judges drafts with a sequence's settings and a copy of its generator, up to a stop token"""
    model, (prompt,) = small_model(case, V=7, L=1), texts(case, 5, V=7)
    drafted = [texts(case, m, V=7)[0] for m in (3, 1, 4, 2, 3)]
    logits = [3 * case.randn(len(guess) + 1, 7) for guess in drafted]
    for guess, rows in zip(drafted[::2], logits[::2], strict=True):
        rows[range(len(guess)), guess] += 20  # of which the target is sure
    for how in (
        SamplingParams(9, None, 1, 0.8, 3, seed=2),
        SamplingParams(9, drafted[0][1], 1, 1.3, seed=4),
    ):
        found = judged_at_once(
            engines(model, EngineConfig(20, 4), k=4), prompt, how, drafted, logits
        )
        observed = [[len(new), *(new + [-1] * 5)[:5], *draws] for new, *draws in found]
        for guess, rows, (new, drawn, own) in zip(drafted, logits, found, strict=True):
            generator = torch.Generator().manual_seed(how.seed)
            still = next_number(generator)
            u = torch.rand(len(rows), generator=generator, dtype=torch.float64).tolist()
            p = token_probabilities(rows, how.temperature, how.top_k, how.top_p)
            right = judged(p, functional.one_hot(torch.tensor(guess), 7).to(p), guess, u)
            if how.stop in right:
                right = right[: right.index(how.stop) + 1]
            settings = f"temperature {how.temperature}, top_k {how.top_k}, stop token {how.stop}"
            scene = f"Drafts {guess} are judged with {settings}"
            text = f"{scene}: {right} should come, yours gives {new}."
            case.that(new == right, text, torch.tensor(observed))
            text = f"{scene}: the generator that comes with the tokens should have drawn {len(u)} "
            text += "numbers of float64, yours has not."
            case.that(drawn == next_number(generator), text, torch.tensor(observed))
            text = f"{scene}: the sequence's own generator should not have drawn, yours has."
            case.that(own == still, text, torch.tensor(observed))


@together
def served_in_turn(engine, calls: list[tuple]) -> list[tuple]:
    """Add, abort and step: after each call the tokens of each request, and what it holds.

    Returns:
        For each call: of each request its tokens, computed, the table's length and its blocks (-1
        and none without a table), and whether it has ended; and the free blocks.
    """
    begun, found = [], []
    for method, *arguments in calls:
        if method == "add":
            begun.append(number(engine.add(*arguments), "add"))
        elif method == "abort":
            engine.abort(begun[arguments[0]])
        else:
            engine.step()
        rows = []
        for each in begun:
            sequence = record(engine, each)
            length, blocks = -1, []
            if sequence.block_table is not None:
                length, *blocks = tables(engine, each)[0]
            tokens = numbers(sequence.tokens, "tokens")
            rows.append((tokens, sequence.num_computed, length, blocks, sequence.reason))
        found.append((rows, free_blocks(engine)))
    return found


def follow_engine(case: Case, engines, config: EngineConfig, count: int, k: int) -> None:
    """Let an engine serve drawn requests; look after each call at all that it keeps of them."""
    model, shared = small_model(case, calls=9 * count, L=1), texts(case, 5)[0]
    prompts = [
        shared[:n] + text
        for n, text in zip((5, 0, 4, 5, 2), texts(case, 2, 4, 3, 1, 5), strict=True)
    ]
    whole = known(model, prompts, 12)
    engine = engines(model, config, k=k, propose=wrong_drafts(prompts, whole, 3))
    blocks, S = config.num_blocks, config.block_size
    calls: list[tuple] = []
    waiting = list(range(len(prompts)))
    stops: list[int | None] = []
    for _ in range(count):
        chance = float(case.rand(1))
        if waiting and (chance < 0.4 or not stops):
            stop = whole[len(stops)][-3] if chance < 0.2 else None
            calls.append(("add", prompts[waiting.pop(0)], SamplingParams(12, stop)))
            stops.append(stop)
        elif stops and chance > 0.93:
            calls.append(("abort", int(case.integers(0, len(stops), 1))))
        else:
            calls.append(("step",))
    told = f"{blocks} blocks of {S}"
    for (method, *arguments), (rows, free) in zip(
        calls, served_in_turn(engine, calls), strict=True
    ):
        about = {"add": "a request of {} tokens", "abort": "abort request {}", "step": "step"}
        first = len(arguments[0]) if method == "add" else arguments[0] + 1 if arguments else 0
        told += f"; {about[method].format(first)}"
        used = {block for _, _, _, held, _ in rows for block in held}
        for n, (tokens, computed, length, held, reason) in enumerate(rows):
            right = whole[n]
            if stops[n] in right[len(prompts[n]) :]:
                right = right[: right.index(stops[n], len(prompts[n])) + 1]
            scene = f"{told}. Then request {n + 1}"
            wrong = f"{scene}: {tell_row(tokens, right[: len(tokens)])}"
            case.that(tokens == right[: len(tokens)], wrong)
            ends = reason is not None or length < 0
            kept = 0 if ends else computed
            blocks_of = math.ceil(kept / S)
            text = f"{scene} should hold {blocks_of} blocks for {kept} computed tokens"
            case.that(len(held) == blocks_of, f"{text}, yours holds {len(held)}.")
            text = (
                f"{scene} has {len(tokens)} tokens: computed should be less, yours is {computed}."
            )
            case.that(computed < len(tokens), text)
            text = f"{scene} has all its tokens: it should have ended, yours has not."
            case.that(reason is not None or len(tokens) < len(right), text)
        text = f"{told}. Then {blocks - len(used)} blocks should be free, yours has {free} free."
        case.that(free == blocks - len(used), text)


@check(SpeculativeCore, weight=2, see="What rejected drafts leave behind")
def calls(engines, case):
    """has the right tokens, blocks and free blocks after each of many calls"""
    follow_engine(case, engines, EngineConfig(40, 2), 14, k=3)
    follow_engine(case, engines, EngineConfig(9, 3, watermark=1), 16, k=2)


@check(SpeculativeCore, see="Several tokens for each of many")
def one_call(engines, case):
    """computes all sequences of a step, and all drafts, in one call of the model"""
    model, prompts = small_model(case, L=1, calls=3), texts(case, 5, 3, 7)
    engine = engines(
        model, EngineConfig(40, 4), k=3, propose=SmallDraft(known(small_model(case), prompts, 9))
    )
    for prompt in prompts:
        engine.add(prompt, SamplingParams(9))
    try:
        steps_of(engine, 3)
    except Failure as failure:
        if "called too often" in failure.message:
            failure.message = (
                "In each of three steps one call of the model should compute all three sequences "
                "with their drafts, yours makes more."
            )
        raise


@check(prompt_lookup_fault, see="One that trains as well")
def exposed(answer, case):
    """gives arguments with which the black box returns what is wrong"""
    demand_exposed(case, answer, "prompt_lookup", looked_up)
