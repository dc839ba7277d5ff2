"""What nbgrader runs when a class is graded, and what writes the released notebooks.

On its way through `nbgrader autograde` a submission is read (`reading`), brought back in step with the gradebook's
cells (`repairing`), run with a seed of its own (`executing`), and judged in this process (`judging`).
`nbgrader_config.py` names these four. `release` writes notebooks/ from solutions/.
"""

#: Notebook metadata in which grading keeps what it did: {"notes": [{"cell": id or "", "text": ...}], "seed": ...}.
METADATA = "attention_course"
