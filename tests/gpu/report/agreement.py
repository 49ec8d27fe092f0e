"""Do the kernels agree with torch's attention, in every precision? The tests of tests/gpu say."""

from pathlib import Path

import pytest

from tests.gpu.report.rows import row

TESTS = Path(__file__).resolve().parents[1] / "test_kernels_on_gpu.py"


class Rows:
    """A plug-in of pytest that prints a row for each test."""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            row(report.nodeid.partition("::")[2], "failed", detail=report.longreprtext[-4000:])
        elif report.skipped:
            row(report.nodeid.partition("::")[2], "skipped", detail=str(report.longrepr[2]))
        elif report.when == "call":
            row(report.nodeid.partition("::")[2], "passed", seconds=round(report.duration, 1))


if __name__ == "__main__":
    options = ["-q", "-m", "gpu", "-p", "no:cacheprovider", f"--confcutdir={TESTS.parent}"]
    raise SystemExit(pytest.main([*options, str(TESTS)], plugins=[Rows()]))
