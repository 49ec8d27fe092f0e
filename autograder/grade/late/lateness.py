"""How late one student's submissions are, what is forgiven, and what the rest costs."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from fractions import Fraction

from autograder.grade.late.policy import Policy

DAY = timedelta(days=1)


@dataclass(frozen=True)
class Work:
    """What a student has handed in of an assignment.

    Args:
        student: the student's id.
        assignment: the assignment's name.
        submitted: when, with an offset.
        score: the points earned, before any penalty.
    """

    student: str
    assignment: str
    submitted: datetime
    score: float


@dataclass(frozen=True)
class Late:
    """A submission that came after the due date.

    Args:
        work: the submission.
        due: the due date, before any extension.
        days: the started days after it.
        extension: how many of them an extension forgives.
        grace: how many the grace period forgives.
        slip: how many slip days are spent on it.
        share: the share of the points earned that the others cost.
        is_capped: whether they would cost more without a largest share.
    """

    work: Work
    due: datetime
    days: int
    extension: int
    grace: int
    slip: int
    share: Fraction
    is_capped: bool

    @property
    def forgiven(self) -> int:
        return self.extension + self.grace + self.slip

    @property
    def charged(self) -> int:
        return self.days - self.forgiven

    @property
    def lost(self) -> float:
        return float(Fraction(self.work.score) * self.share)

    @property
    def submitted(self) -> datetime:
        """When it came, on the clock of the due date."""
        return self.work.submitted.astimezone(self.due.tzinfo)

    @property
    def why(self) -> str:
        """What is forgiven, and what the rest costs."""
        parts = []
        for number, name in (
            (self.extension, "by extension"),
            (self.grace, "by the grace period"),
            (self.slip, "by slip days"),
        ):
            if number:
                parts.append(f"{days(number)} forgiven {name}")
        if self.charged:
            limit = ", the most that being late costs" if self.is_capped else ""
            percent = f"{float(self.share * 100):g} % of {self.work.score:.4g} points"
            parts.append(f"{days(self.charged)} charged: {percent}{limit}")
        return "; ".join(parts)


def days(number: int) -> str:
    """Write a number of days."""
    return f"{number} day" if number == 1 else f"{number} days"


def date(moment: datetime) -> str:
    """Write a moment to the minute, with its time zone."""
    return f"{moment:%Y-%m-%d %H:%M %Z}"


def sentence(late: Late) -> str:
    """Say in one line how late a submission is and what that costs."""
    return (
        f"Due {date(late.due)}, submitted {date(late.submitted)}: {days(late.days)} late. "
        f"{late.why}. Points lost: {late.lost:.2f}."
    )


def assess(policy: Policy, works: Sequence[Work]) -> list[Late]:
    """Say which submissions of one student are late, and spend the student's slip days.

    Args:
        policy: the teacher's rules.
        works: the submissions; assignments without a due date are left out.
    Returns:
        The late ones in the order of their due dates.
    """
    due = [work for work in works if work.assignment in policy.due]
    due.sort(key=lambda work: (policy.due[work.assignment].timestamp(), work.assignment))
    found = [late for work in due if (late := _without_slip_days(policy, work)).days]
    costs = [
        [
            Fraction(late.work.score) * policy.share(late.charged - slip)
            for slip in range(min(late.charged, policy.slip_days) + 1)
        ]
        for late in found
    ]
    spent = spend(costs, policy.slip_days)
    return [_late(policy, late, slip) for late, slip in zip(found, spent, strict=True)]


def spend(costs: Sequence[Sequence[Fraction]], slip_days: int) -> tuple[int, ...]:
    """Spend slip days where they save most points.

    A cap makes greed wrong: the first of several days may save nothing. So all ways are compared,
    by dynamic programming over submissions. Of equally good ways it takes the one with the fewest
    days, and of those the one that spends them on the earliest submissions.

    Args:
        costs: for each submission the points lost after 0, 1, 2, … slip days, up to all its days.
        slip_days: how many there are to spend.
    Returns:
        How many days are spent on each submission.
    """
    best: dict[int, tuple[Fraction, tuple[int, ...]]] = {0: (Fraction(0), ())}
    for cost in costs:
        longer: dict[int, tuple[Fraction, tuple[int, ...]]] = {}
        for used, (saved, ways) in best.items():
            for slip in range(min(len(cost) - 1, slip_days - used) + 1):
                way = (saved + cost[0] - cost[slip], (*ways, slip))
                longer[used + slip] = max(longer.get(used + slip, way), way)
        best = longer
    return max((saved, -used, ways) for used, (saved, ways) in best.items())[2]


def _without_slip_days(policy: Policy, work: Work) -> Late:
    due = policy.due[work.assignment]
    extended = policy.due_for(work.assignment, work.student)
    late = _started_days(due, work.submitted)
    after_extension = _started_days(extended, work.submitted)
    after_grace = _started_days(extended, work.submitted - policy.grace)
    forgiven = late - after_extension, after_extension - after_grace
    return Late(work, due, late, *forgiven, 0, Fraction(0), False)


def _late(policy: Policy, late: Late, slip: int) -> Late:
    left = late.charged - slip
    share = policy.share(left)
    return replace(late, slip=slip, share=share, is_capped=share < policy.per_day * left)


def _started_days(due: datetime, submitted: datetime) -> int:
    """Count started days on the clock of the due date: one of them may have 23 or 25 hours."""
    if submitted.timestamp() <= due.timestamp():
        return 0
    passed = submitted.astimezone(due.tzinfo).replace(tzinfo=None) - due.replace(tzinfo=None)
    return max(1, -(-passed // DAY))  # an hour that comes twice is late as well
