# The commands of the course; `make help` lists them.

PYTHON ?= python3
PORT ?= 8888
RUN := .venv/bin/python -m

# One thread per process: faster for small models, and the same results on every machine.
export OMP_NUM_THREADS := 1

.PHONY: help env lab test test-browser build score clean

help:
	@echo "make lab     open JupyterLab for students and graders (PORT=8888)"
	@echo "make test    run every check and test"
	@echo "make test-browser    run the tests in a browser only (pictures: build/screenshots)"
	@echo "make build   make the notebooks from their masters"
	@echo "make score   test the graders against known mistakes"
	@echo "make env     make the environment in .venv, which the others do too (PYTHON=python3)"
	@echo "make clean   remove the environment and caches; grades and submissions stay"

env:
	@$(PYTHON) autograder/environment.py

lab: env
	@$(RUN) autograder lab --port $(PORT)

test: env
	@echo "== Style"
	@$(RUN) ruff check
	@$(RUN) ruff format --check
	@echo "== Generated files are fresh"
	@$(RUN) autograder build --check
	@echo "== Graders"
	@$(RUN) autograder score
	@echo "== Tests"
	@$(RUN) pytest -n logical --dist loadgroup

test-browser: env
	@$(RUN) pytest -m browser -n logical --dist loadgroup

build: env
	@$(RUN) autograder build

score: env
	@$(RUN) autograder score

clean:
	rm -rf .venv .pytest_cache .ruff_cache build *.egg-info
	find autograder course_pkg tests -name __pycache__ -type d -prune -exec rm -rf {} +
