"""nbgrader's directories and rules for this course; nbgrader's commands read this file."""

import os
import sys
from importlib.util import find_spec
from pathlib import Path

c = get_config()  # Jupyter defines this name for its configuration files.
root = Path(__file__).resolve().parent
course = root / "autograder" / "course"
# SQLite creates the gradebook's file, but not its folder.
course.mkdir(parents=True, exist_ok=True)
# nbgrader calls alembic by name, also where the environment has not been activated.
programs = str(Path(sys.executable).parent)
if programs not in os.environ["PATH"].split(os.pathsep):
    os.environ["PATH"] = programs + os.pathsep + os.environ["PATH"]

# What is committed.
c.CourseDirectory.course_id = "sequence_models"
c.CourseDirectory.root = str(root)
c.CourseDirectory.source_directory = "solutions"
c.CourseDirectory.release_directory = "notebooks"

# What is not: submissions, grades and the exchange.
c.CourseDirectory.db_url = f"sqlite:///{course / 'gradebook.db'}"
c.CourseDirectory.submitted_directory = "autograder/course/submitted"
c.CourseDirectory.autograded_directory = "autograder/course/autograded"
c.CourseDirectory.feedback_directory = "autograder/course/feedback"
c.CourseDirectory.solution_directory = "autograder/course/solution"
c.CourseDirectory.source_with_tests_directory = "autograder/course/source_with_tests"
c.CourseDirectory.ignore = [
    ".ipynb_checkpoints",
    ".DS_Store",
    "*.pyc",
    "__pycache__",
    "feedback",
]
c.Exchange.root = str(course / "exchange")
c.Exchange.cache = str(course / "cache")
# A student of this checkout works in notebooks/NN_topic, so nothing has to be fetched first.
c.Exchange.assignment_dir = str(root / "notebooks")

# What came in by hand has no secret under which its feedback could be fetched.
c.ExchangeFactory.release_feedback = "autograder.classroom.exchange.ReleaseFeedback"

c.IncludeHeaderFooter.header = ""
c.IncludeHeaderFooter.footer = ""

# The rubric of a hand-graded question stands in a locked text cell above the answer.
c.ClearMarkScheme.enforce_metadata = False

# Grading kernels inherit the environment. With one thread each, a busy machine does not push
# right solutions over the time limit.
os.environ["OMP_NUM_THREADS"] = "1"
c.ExecutePreprocessor.timeout = 120
c.ExecutePreprocessor.interrupt_on_timeout = True

# Students' code runs in a sandbox and scores are computed outside it: see autograder/grade. The
# metadata that nbgrader would check here come from the release, not from the student.
grade = "autograder.grade.nbgrader"
late = "autograder.grade.late.plugin"
journal = "autograder.grade.journal.plugin"
c.Mend.course = c.Judge.course = c.Mark.course = str(root)
c.NoticeScores.course = c.NoteScores.course = str(root)
# What builds on a wrong part is judged once more with a right one: one mistake costs once.
c.Judge.carries_errors = True
c.Autograde.exporter_class = f"{grade}.SubmissionExporter"
c.SubmissionExporter.optimistic_validation = True  # once, after all steps, and not after each
c.Autograde.pre_convert_hook = f"{grade}.clean_submission"
c.Autograde.sanitize_preprocessors = [
    f"{grade}.Mend",
    "nbgrader.preprocessors.ClearOutput",
    "nbgrader.preprocessors.DeduplicateIds",
    "nbgrader.preprocessors.OverwriteKernelspec",
    "nbgrader.preprocessors.OverwriteCells",
]
c.Autograde.autograde_preprocessors = [
    f"{grade}.Judge",
    "nbgrader.preprocessors.IgnorePattern",
    "nbconvert.preprocessors.ClearMetadataPreprocessor",
    "nbgrader.preprocessors.LimitOutput",
    f"{journal}.NoticeScores",
    "nbgrader.preprocessors.SaveAutoGrades",
    f"{grade}.Mark",
    f"{late}.SettleLateness",
    "nbgrader.preprocessors.AssignLatePenalties",
    f"{journal}.NoteScores",
]

# What being late costs is in autograder/course/policy.toml; without that file it costs nothing.
c.AssignLatePenalties.plugin_class = f"{late}.LatePolicy"
c.ExportApp.plugin_class = "autograder.classroom.marks.Table"
c.SettleLateness.course = c.LatePolicy.course = str(root)
c.Export.course = c.Table.course = str(root)

# Feedback and the formgrader's pages need no network: formulas are MathML, and pictures of the
# notebook are part of the page. Nothing in it that a student has written can run a script.
reports = "autograder.classroom.reports"
c.HTMLExporter.filters = {
    name: f"{reports}.filters.{name}"
    for name in (
        *("markdown2html", "clean_html", "highlight_code"),
        *("ansi2html", "strip_files_prefix"),
    )
}
c.HTMLExporter.sanitize_html = True
c.HTMLExporter.preprocessors = [f"{reports}.shown.OnlyWhatIsShown"]
templates = Path(find_spec(reports).origin).with_name("templates")
formgrader = Path(find_spec("nbgrader").origin).parent / "server_extensions" / "formgrader"
c.HTMLExporter.extra_template_basedirs = [str(templates), str(formgrader / "templates")]
c.HTMLExporter.extra_template_paths = [str(formgrader)]  # where ours find the ones they extend

# Feedback begins with points, what is wrong, and comments. It shows neither hidden tests nor
# rubrics, which autograding has put back.
c.GenerateFeedback.exporter_class = f"{reports}.feedback.FeedbackExporter"
c.GenerateFeedback.preprocessors = [
    f"{late}.SettleLateness",
    "nbgrader.preprocessors.GetGrades",
    "nbgrader.preprocessors.ClearHiddenTests",
    "nbgrader.preprocessors.ClearMarkScheme",
    f"{reports}.feedback.Summarise",
    "nbconvert.preprocessors.CSSHTMLHeaderPreprocessor",
]
