# Everything runs in .venv, which `make setup` makes from the pins. Nothing has to be activated.
# Targets are relative paths, so the course may lie in a folder with spaces or accents in its path.

PYTHON ?= python3

# nbgrader starts alembic by its name, and Jupyter finds its kernel and its parts by way of these two.
export PATH := $(CURDIR)/.venv/bin:$(PATH)
export JUPYTER_PREFER_ENV_PATH := 1

# An environment cannot be moved or copied, and does not survive the Python it was made from.
# Such a one, and one of a Python that is too old, is made anew.
CLEAR := $(shell { [ ! -d .venv ] || { \
	.venv/bin/python -c 'import sys; sys.exit(sys.version_info < (3, 11))' && \
	{ [ ! -e .venv/ready ] || [ "$$(cat .venv/ready)" = "$$(pwd -P)" ]; }; }; } 2>/dev/null || echo --clear)
ifneq ($(CLEAR),)
.PHONY: .venv/ready
endif

.PHONY: help setup lab test lint notebooks
help:
	@echo "make lab        open the course in JupyterLab"
	@echo "make setup      make or update the environment in .venv (the others do this first)"
	@echo "make test       run the tests, the quick ones first"
	@echo "make lint       check style and format, in notebooks too"
	@echo "make notebooks  write notebooks/ from solutions/"
	@echo "make setup PYTHON=python3.12 makes it with another Python; remove .venv first if it exists."

setup: .venv/ready

.venv/ready: requirements.txt pyproject.toml
	@command -v "$(PYTHON)" >/dev/null || { echo 'There is no "$(PYTHON)" here. Install Python 3.11 to 3.14,' \
		'or say where it is: make $(or $(MAKECMDGOALS),setup) PYTHON=/path/to/python' >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; v = sys.version_info[:2]; sys.exit(0 if (3, 11) <= v <= (3, 14) else \
		"This is Python %d.%d, and the course needs Python 3.11 to 3.14. If there is such a Python on this machine:" \
		" make setup PYTHON=python3.11" % v)'
	@"$(PYTHON)" -c 'import ensurepip, venv' 2>/dev/null || { echo 'This Python cannot make environments:' \
		'its modules venv and ensurepip are missing. On Debian and Ubuntu: sudo apt-get install python3-venv' >&2; exit 1; }
	@echo "Making the environment in .venv: some minutes, once."
	"$(PYTHON)" -m venv $(CLEAR) .venv
	.venv/bin/python -m pip install --requirement requirements.txt
	.venv/bin/python -m pip install --no-deps --no-build-isolation --editable .
	@pwd -P > .venv/ready

lab: setup
	.venv/bin/python -m jupyterlab --ServerApp.root_dir=. notebooks/00_start_here/00_start_here.ipynb

test: setup
	.venv/bin/python -m pytest

lint: setup
	.venv/bin/python -m ruff check .
	.venv/bin/python -m ruff format --check .

notebooks: setup
	.venv/bin/python -m helpers.grading.release
