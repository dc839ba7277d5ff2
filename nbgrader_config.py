"""How nbgrader finds, releases and grades this course. Everything else is nbgrader as it comes."""

c = get_config()  # noqa: F821 - nbgrader puts it there

c.CourseDirectory.course_id = "attention"
c.CourseDirectory.source_directory = "solutions"
c.CourseDirectory.release_directory = "notebooks"

# What learners find in place of the solutions. Quizzes keep their line `quiz_01_1 = None` instead.
c.ClearSolutions.code_stub = {"python": 'raise NotImplementedError("Write this function.")  # YOUR CODE HERE'}
c.ClearSolutions.text_stub = "YOUR ANSWER HERE"
c.GenerateAssignment.preprocessors = [
    "nbgrader.preprocessors.IncludeHeaderFooter",
    "nbgrader.preprocessors.InstantiateTests",
    "nbgrader.preprocessors.LockCells",
    "helpers.grading.stubs.ClearAnswers",
    "nbgrader.preprocessors.ClearOutput",
    "nbgrader.preprocessors.CheckCellMetadata",
    "nbgrader.preprocessors.ComputeChecksums",
    "nbgrader.preprocessors.SaveCells",
    "nbgrader.preprocessors.ClearHiddenTests",
    "nbgrader.preprocessors.ClearMarkScheme",
    "nbgrader.preprocessors.ComputeChecksums",
    "nbgrader.preprocessors.CheckCellMetadata",
]

# First a submission is read and repaired, so that nobody's mangled notebook stops the class or loses a score.
c.Autograde.exporter_class = "helpers.grading.reading.SubmissionExporter"
c.Autograde.sanitize_preprocessors = [
    "helpers.grading.repairing.RepairSubmission",
    "nbgrader.preprocessors.ClearOutput",
    "nbgrader.preprocessors.DeduplicateIds",
    "nbgrader.preprocessors.OverwriteKernelspec",
    "nbgrader.preprocessors.OverwriteCells",
    "nbgrader.preprocessors.CheckCellMetadata",
]

# Then it runs, and what its test cells observed is judged outside its process, before nbgrader saves the scores.
c.Autograde.autograde_preprocessors = [
    "helpers.grading.executing.ExecuteSubmission",
    "helpers.grading.judging.JudgeObservations",
    "nbgrader.preprocessors.IgnorePattern",
    "nbconvert.preprocessors.ClearMetadataPreprocessor",
    "nbgrader.preprocessors.LimitOutput",
    "nbgrader.preprocessors.SaveAutoGrades",
    "nbgrader.preprocessors.AssignLatePenalties",
    "nbgrader.preprocessors.CheckCellMetadata",
]

# Seconds for one cell, also when a learner presses Validate; and for a whole submission.
c.Execute.timeout = 60
c.ExecuteSubmission.submission_timeout = 600
