"""Which workers of a cluster come to the verdicts of this process: the others are refused."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from autograder.assignment import Assignment
from autograder.grade.errors import GradingError
from autograder.grade.judging.verdict import COURSE, versions
from autograder.grade.kernel import sandbox

if TYPE_CHECKING:
    from distributed import Client

AGAIN = 1.0  # seconds after which to look for new workers
_REMEDY = "give it the commit, the packages and the sandbox that are here"


class Admission:
    """The workers of a cluster that have what verdicts depend on as it is in this process.

    Args:
        client: leads to the cluster.
        assignment: what is graded.
        tell: is told of workers that are refused.
    Raises:
        GradingError: the scheduler, which reads and writes tasks, has other versions.
    """

    def __init__(self, client: "Client", assignment: Assignment, tell: Callable[[str], None]):
        self._client, self._assignment, self._tell = client, assignment, tell
        self._agreeing: set[str] = set()
        self._refused: dict[str, str] = {}
        self._here: set[str] = set()
        self._looked = float("-inf")
        try:
            found = client.run_on_scheduler(versions, assignment)
        except OSError:  # it is gone, which is not about versions
            raise
        except Exception as error:
            found = error
        if reason := self._differences(found):
            raise GradingError(f"the scheduler cannot be used: {reason}")

    def look(self) -> set[str]:
        """Give the addresses of those that are there; new workers are asked first.

        Raises:
            GradingError: there are workers, and none has ever agreed.
        """
        if time.monotonic() - self._looked > AGAIN:
            present = set(self._client.nthreads())
            refused = self._refuse(present - self._agreeing - self._refused.keys())
            self._refused |= refused
            self._here = present & self._agreeing
            self._looked = time.monotonic()
            if self._refused and not self._agreeing:
                raise GradingError("; ".join(self._refused.values()))
            for sentence in refused.values():
                self._tell(sentence)
        return self._here

    def _refuse(self, new: set[str]) -> dict[str, str]:
        """Ask new workers; say for each that is refused why."""
        if not new:
            return {}
        answers = self._client.run(
            of_worker, self._assignment, workers=sorted(new), on_error="return"
        )
        # One that does not answer is asked again, if it is still there.
        answers = {name: found for name, found in answers.items() if not isinstance(found, OSError)}
        reasons = {name: self._differences(found) for name, found in answers.items()}
        self._agreeing |= {name for name, reason in reasons.items() if not reason}
        refused = {name: reason for name, reason in reasons.items() if reason}
        return {name: f"worker {name} is refused: {why}" for name, why in refused.items()}

    def _differences(self, there: dict[str, str] | Exception) -> str:
        """Say in what a process differs from this one, by its answer; nothing if it does not."""
        if isinstance(there, Exception):  # its course may lack what answers
            return f"{COURSE} differ ({there}); {_REMEDY}"
        here = of_worker(self._assignment)
        found = [
            f"{name} differ" if name == COURSE else f"{name}: {here.get(name)} here, {value} there"
            for name, value in there.items()
            if value != here.get(name)
        ]
        return "; ".join([*found, _REMEDY]) if found else ""


def of_worker(assignment: Assignment) -> dict[str, str]:
    """Say what verdicts depend on in this process, and whether it can judge at all."""
    return {**versions(assignment), "sandbox": sandbox.problem() or "works"}
