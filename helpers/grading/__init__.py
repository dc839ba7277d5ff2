"""Grading a class, and writing the released notebooks.

On its way through `nbgrader autograde` a submission is read (`reading`), brought back in step with the gradebook's
cells (`repairing`), run in a sandbox with a seed of its own (`executing`), and judged in this process (`judging`).
`nbgrader_config.py` names these four. `release` writes notebooks/ from solutions/.

`python -m helpers.grading` does this for a whole class. `lms` collects and exports; `running` has many submissions
executed at a time (`workers`), with kernels forked into sandboxes (`template`, `kernels`, `sandbox`), and lets
nbgrader save them (`converting`); `regrading` judges again; `class_report` says how the class did.
"""

#: Notebook metadata in which grading keeps what it did, of a graded notebook:
#: "notes": [{"cell": grade_id or "", "text": sentence}], what was put right before it ran and happened while it ran;
#: "submission": the digest of what was handed in;
#: "seed": the number that its cases were made from;
#: "sandbox": whether it ran in one;
#: "reports": {exercise id: {"state", "earned", "points", "misconceptions": [ids], "notes": [sentences],
#: "cases": digest of the exercise's cases}}, the verdicts.
#: The notes of a verdict say what happened to its test cell: what was put right, and why it could not be judged.
METADATA = "attention_course"
