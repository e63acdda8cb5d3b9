# make demo: a first look, on data that comes along.   make test: lint, types, tests.   make dist: wheel and source.
# make docs: the documentation site, into site/.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
MADE   := $(VENV)/.made
READY  := $(VENV)/.ready
DEV    := $(VENV)/.ready-dev
SITE   := $(VENV)/.ready-docs
INSTALL := $(BIN)/pip install --no-compile --quiet --disable-pip-version-check --constraint constraints.txt --editable

# Byte code is made of what is imported, when it first is; pip would make it of all that is installed.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test tests lint dist docs clean

demo: $(READY)
	$(BIN)/mdcg compare --scenario digits-5 --methods naive,replay,md-cg --memory 100 --seeds 0-4 \
		--out demo-runs --report report.html

# Types are checked while the tests run: neither needs all cores all the time.
test: $(DEV)
	$(MAKE) --jobs 2 lint tests

# One thread in each process: several threads would spin while they wait for a core.
tests: $(DEV)
	OMP_NUM_THREADS=1 $(BIN)/pytest --numprocesses auto --maxprocesses 4 --dist worksteal -m "not slow"

lint: $(DEV)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Wheel and source, into dist/.
dist: $(DEV)
	$(BIN)/python -m hatchling build

# A link or an anchor that leads nowhere is an error, and so is a notebook that fails.
docs: $(SITE)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	@echo "open site/index.html, or: $(BIN)/python -m http.server -d site"

$(MADE):
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "mdcg needs Python 3.11 or newer; say for instance: make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)
	touch $(MADE)

$(READY): $(MADE) pyproject.toml constraints.txt
	$(INSTALL) .
	touch $(READY)

# What is needed to develop has all that is needed to run: one installation does for both.
$(DEV): $(MADE) pyproject.toml constraints.txt
	$(INSTALL) '.[dev]'
	touch $(READY) $(DEV)

$(SITE): $(MADE) pyproject.toml constraints.txt
	$(INSTALL) '.[docs]'
	touch $(READY) $(SITE)

clean:
	rm -rf $(VENV) dist site demo-runs report.html report
