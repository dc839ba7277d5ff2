"""Checks, pictures, the portfolio and class grading for the course on multi-head attention."""

import os
import sys

#: Set while a class is graded quickly: pictures then show their words only.
WITHOUT_PICTURES = "ATTENTION_COURSE_WITHOUT_PICTURES"

# One thread by default: a Binder session has one slow core, and a check may then be run in a forked child.
# torch reads the variable when it is imported; where that has happened already, it is told.
if "OMP_NUM_THREADS" not in os.environ:
    os.environ["OMP_NUM_THREADS"] = "1"
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
