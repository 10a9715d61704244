# `make help` lists the targets. Everything runs in .venv, which is made on first use.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# One thread per process: these networks are too small for more, and chapters run side by side.
export OMP_NUM_THREADS ?= 1
# Modules are compiled once, not in each of the many processes that import them, whatever the setting of the caller.
unexport PYTHONDONTWRITEBYTECODE
NBVAL := --nbval --nbval-current-env --nbval-sanitize-with tests/nbval_sanitize.cfg --nbval-cell-timeout 120

# Tests are shared out between this many processes; those of one notebook, or of one group (tests/conftest.py), stay together.
JOBS ?= 2
SHARED_OUT := -n $(JOBS) --dist loadgroup --no-loadscope-reorder

# `TORCH_INDEX=URL` names another place where pip looks for torch, `TORCH_INDEX=` none besides its usual ones; not set, it
# is PyTorch's CPU index on Linux without an NVIDIA GPU, if that index can be reached.

.DEFAULT_GOAL := help
.PHONY: help book test outputs quick slow lint house lab notebooks colab matrix address serve print pdf look results verify benchmarks faults measure lock clean

help:  ## list the targets
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 12

$(VENV)/.installed: requirements.txt pyproject.toml
	$(PYTHON) -c 'import sys; assert (3, 11) <= sys.version_info[:2] <= (3, 13), f"Python 3.11 to 3.13 is needed, this is {sys.version.split()[0]}; try make PYTHON=python3.12"'
	$(PYTHON) -m venv $(VENV)
	index="$${TORCH_INDEX-$$($(PYTHON) tools/torch_index.py)}"; \
	$(BIN)/python -m pip install --disable-pip-version-check --quiet $${index:+--extra-index-url "$$index"} -r requirements.txt
	touch $@

book: $(VENV)/.installed  ## execute the chapters and build the HTML
	$(BIN)/python tools/build.py

test: $(VENV)/.installed  ## all tests: code, claims, notebooks, built pages
	$(MAKE) --no-print-directory -j2 lint outputs
	$(BIN)/python -m pytest -q $(SHARED_OUT) --doctest-modules attnbook tests

outputs: export ATTNBOOK_FRAMES := $(CURDIR)/_build/frames
outputs: $(VENV)/.installed  ## execute the chapters and compare what comes out with what is stored
	$(BIN)/python -m pytest -q -n $(JOBS) --dist loadfile $(NBVAL) chapters

quick: $(VENV)/.installed  ## the quick tests, about a minute
	$(BIN)/python -m pytest -q $(SHARED_OUT) -m "not slow" tests

slow: $(VENV)/.installed  ## time the tests and name those that `make quick` leaves out
	$(BIN)/python tools/time_tests.py

lint: $(VENV)/.installed  ## style, types and the arrows between modules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

house: $(VENV)/.installed  ## how large the house is, in tokens, beside its budgets
	$(BIN)/python tools/house.py

# With these settings JupyterLab covers no page with the offer of news, and asks nobody for newer versions.
lab: export JUPYTER_CONFIG_PATH := $(CURDIR)/tools/jupyter$(if $(JUPYTER_CONFIG_PATH),:$(JUPYTER_CONFIG_PATH))
lab: $(VENV)/.installed  ## open copies of the chapters in JupyterLab, in play/, to change as you like
	$(BIN)/python tools/copies.py
	$(BIN)/jupyter lab --ServerApp.root_dir=. --LabApp.default_url=/lab/tree/play/chapters

notebooks: $(VENV)/.installed  ## execute the chapters again and store their outputs
	$(BIN)/python tools/run_chapters.py

colab:  ## run the chapters as Colab does: the built package, at its lowest versions (Python 3.11 or 3.12)
	$(PYTHON) tools/colab.py

matrix:  ## verdicts on other Pythons, with the oldest and the newest packages, on one thread and two
	$(PYTHON) tools/matrix.py

address:  ## write the address of the repository: URL=https://github.com/someone/attnbook, or URL=none
	$(PYTHON) tools/address.py $(URL)

serve: $(VENV)/.installed  ## show the built book at http://localhost:8000
	$(BIN)/python -m http.server --bind 127.0.0.1 --directory _build/html 8000

print: $(VENV)/.installed  ## put the chapters of the built book on one page, to print or to save as PDF
	$(BIN)/python tools/one_page.py

pdf: $(VENV)/.installed  ## print the built book to _build/html/attnbook.pdf, with bookmarks and page numbers
	$(BIN)/python tools/one_page.py --pdf

look: $(VENV)/.installed  ## photograph and measure the pages of the built book, light and dark, desktop and phone
	$(BIN)/python tools/look.py

results: $(VENV)/.installed  ## run all experiments at the book's size and store the results
	for e in $$($(BIN)/attnbook list --experiments); do $(BIN)/attnbook run $$e --size book || exit 1; done

verify: $(VENV)/.installed  ## run the claims again and compare with the stored verdicts
	$(BIN)/attnbook verify

benchmarks: $(VENV)/.installed  ## measure speed side by side and store the table
	$(BIN)/python benchmarks/table_1_ensemble.py --store
	$(BIN)/python benchmarks/side_by_side.py --store

faults: $(VENV)/.installed  ## break things on purpose, write down what happened, fail if it did harm
	$(BIN)/python tools/faults.py

measure: $(VENV)/.installed  ## measure time and disk of a fresh clone, for the README
	$(BIN)/python tools/measure_book.py

lock: $(VENV)/.installed  ## write requirements.lock from the installed versions
	$(BIN)/python -m pip install --disable-pip-version-check --quiet pip-tools
	$(BIN)/python tools/lock.py

clean:  ## remove everything that was built
	rm -rf _build .pytest_cache .mypy_cache .ruff_cache .hypothesis
