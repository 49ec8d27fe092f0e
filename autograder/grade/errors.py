"""What can go wrong in grading that is not the student's fault."""


class GradingError(Exception):
    """Grading cannot go on; the text says why and what to do."""


class SandboxMissing(GradingError):
    """This machine cannot run student code in a sandbox."""


class KernelDied(GradingError):
    """The kernel of a submission ended, or did not answer; the text says why."""


class TemplateEnded(GradingError):
    """The process from which kernels are forked does not start, or has ended."""


class EndedWorkers(GradingError):
    """A submission ended the process that judged it, and a second one."""

    def __init__(self):
        super().__init__(
            "it ended the grader's process twice; grade it by hand, or again with --force"
        )
