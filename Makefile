# The commands of the course; `make help` lists them.

PYTHON ?= python3
PORT ?= 8888
RUN := .venv/bin/python -m
LOCK := $(RUN) uv pip compile --quiet --universal --no-header --no-annotate

# One thread per process: faster for small models, and the same results on every machine.
export OMP_NUM_THREADS := 1

# A folder of wheels (`make wheels`): test-gpu then needs torch and neither a network nor .venv.
WHEELS ?=
# Options for pip, such as --python-version 3.12 for a machine with another Python.
PIP ?=
SEEDS ?= 0 1 2 3 4 5 6 7 8 9
AGAIN ?=
SINCE ?= HEAD

.PHONY: help env lab site test prove quick test-browser gpu-packages test-gpu gpu-report wheels lock
.PHONY: build fresh score thorough
.PHONY: trial sabotage anywhere clean

help:
	@echo "make lab     open JupyterLab for students and graders (PORT=8888)"
	@echo "make site    make the course's site in build/site, for a browser and without a network"
	@echo "make test    run every check and test; what is slow, if it has changed or has its turn"
	@echo "             (COURSE_TEST_ALL=1: all of it)"
	@echo "make prove   run the slow tests of changed assignments, and note what has passed"
	@echo "make quick   test what you have changed (SINCE=HEAD)"
	@echo "make test-browser    run the tests in a browser only (pictures: build/screenshots)"
	@echo "make test-gpu  run the GPU tests and the notebooks on a GPU (WHEELS=wheels: no network)"
	@echo "make gpu-report  what a GPU shows of the course in MINUTES=12, in RESULTS=build/gpu"
	@echo "make wheels  download what both need where there is torch but no network"
	@echo "make lock    choose the versions of all packages anew, for pyproject.toml"
	@echo "make build   make the notebooks from their masters"
	@echo "make score   test the graders against known mistakes"
	@echo "make thorough  the same with other inputs, and for names of mistakes that nobody made;"
	@echo "             and whole notebooks with other correct solutions"
	@echo "make trial   run the solved notebooks at ten seeds and keep what comes out (SEEDS=\"0 1 2\")"
	@echo "make sabotage  run the solved notebooks without their ideas: which claims still hold"
	@echo "make anywhere  run everything as if on other machines, and tell what differs"
	@echo "make env     make the environment in .venv, which the others do too (PYTHON=python3)"
	@echo "make clean   remove the environment and caches; grades and submissions stay"

env:
	@$(PYTHON) autograder/classroom/environment.py

lab: env
	@$(RUN) autograder lab --port $(PORT)

# The site shows the scoreboard, which `make test` renews.
scoreboard.json: | env
	@$(RUN) autograder score --known --jobs 2 --json $@

site: env scoreboard.json
	@$(RUN) autograder site

test: env
	@echo "== Style"
	@$(RUN) ruff check
	@$(RUN) ruff format --check
	@echo "== Types"
	@$(RUN) mypy
	@echo "== Graders, and generated files"
	@$(RUN) autograder score --fresh --known --jobs 2 --json scoreboard.json
	@echo "== Tests"
	@$(RUN) pytest -n auto --dist loadgroup --no-loadscope-reorder

prove: env
	@$(RUN) tests.proof

quick: env
	@$(RUN) tests.quick $(SINCE)

test-browser: env
	@COURSE_TEST_ALL=1 $(RUN) pytest -m browser -n auto --dist loadgroup

# On a machine with a GPU: with the environment of the course, or with what the machine has and WHEELS.
# COURSE_DEVICE=cpu rehearses both.
COURSE_DEVICE ?= cuda
MINUTES ?= 12
RESULTS ?= build/gpu
ifeq ($(WHEELS),)
gpu-packages: env
ON_GPU := COURSE_DEVICE=$(COURSE_DEVICE) $(RUN)
else
gpu-packages:
	@$(PYTHON) -m pip install --quiet --no-index --no-deps --upgrade --target build/packages $(WHEELS)/*.whl
ON_GPU := COURSE_DEVICE=$(COURSE_DEVICE) PYTHONPATH=$(CURDIR):$(CURDIR)/build/packages $(PYTHON) -m
endif

test-gpu: gpu-packages
	@$(ON_GPU) pytest -m gpu --confcutdir=tests/gpu tests/gpu

gpu-report: gpu-packages
	@$(ON_GPU) tests.gpu.report --minutes $(MINUTES) --results $(RESULTS)

wheels: env
	@rm -rf wheels
	@$(RUN) pip download --no-deps --only-binary=:all: --dest wheels --requirement locks/gpu.txt $(PIP)
	@$(RUN) tests.gpu.size wheels

lock: env
	@$(LOCK) --all-extras pyproject.toml --output-file locks/everything.txt
	@$(LOCK) --extra notebooks --excludes locks/not_on_a_gpu_machine.txt \
		--constraint locks/everything.txt pyproject.toml --output-file locks/gpu.txt

build: env
	@$(RUN) autograder build

fresh: env
	@$(RUN) autograder build --check

score: env
	@$(RUN) autograder score

thorough: env
	@$(RUN) autograder score --thorough --jobs 2
	@$(RUN) tests.across_the_wire
	@$(RUN) tests.alternative_notebooks

trial: env
	@$(RUN) autograder trial $(AGAIN) --seeds $(SEEDS)

sabotage: env
	@$(RUN) autograder sabotage --mistakes

anywhere: env
	@$(RUN) tests.anywhere

clean:
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache build *.egg-info autograder/course/kits
	find autograder course_pkg tests -name __pycache__ -type d -prune -exec rm -rf {} +
