"""Hidden checks of mae: what probabilities are, and the black box by name."""

import torch

from course_pkg.checking.black_box import demand_named
from course_pkg.checking.registry import check
from course_pkg.checks.mae import probe_inputs
from course_pkg.mae import linear_probe, random_masking_fault


@check(linear_probe, see="A linear probe")
def distributions(probe, case):
    """gives each new image probabilities that sum to one"""
    features, labels, new, classes = probe_inputs(case)
    given = probe(features, labels, new, classes)
    case.shape(given, (len(new), classes), "probabilities")
    case.that(given.min() >= 0, f"probabilities should be at least 0, one is {given.min():.4g}.")
    case.equal(given.sum(dim=1), torch.ones(len(new)), "sums of the probabilities")


@check(random_masking_fault, see="One that trains as well")
def named(answer, case):
    """names what is wrong"""
    demand_named(case, answer, "B")
