# The two commands of the README: `make demo` and `make test`. Both set up .venv on first use.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PEERS := $(VENV)/.peers
# Few BLAS threads: the tests stay quick on shared machines. Benchmarks limit themselves to one.
export OMP_NUM_THREADS ?= 2

PARALLEL := -n auto --maxprocesses=4 --dist worksteal

.DEFAULT_GOAL := help
.PHONY: help demo test bench docs lint types layers notebooks format clean

help:  ## list the commands
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "tensoralg needs Python 3.11 or newer; '$(PYTHON)' is older. Try: make PYTHON=python3.12 ..."; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) \
		|| { rm -rf $(VENV); echo "python3 -m venv failed; on Debian and Ubuntu: apt install python3-venv"; exit 1; }
	@echo "Installing tensoralg and its tools into $(VENV) (once, a few minutes) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

demo: $(STAMP)  ## recover mixtures from real data and a small study, beside scikit-learn
	@$(BIN)/python -m tensoralg.studies.demo --out demo-report

test: export OMP_NUM_THREADS := 1
test: $(STAMP)  ## the whole test suite, doctests included, on up to four processes
	$(BIN)/python -m pytest $(PARALLEL) tests
	$(BIN)/python -m pytest $(PARALLEL) --doctest-modules --pyargs tensoralg

$(PEERS): $(STAMP)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,peers]' \
		|| echo "some peers do not install here: their columns stay empty"
	@touch $@

bench: $(PEERS)  ## measure against the peers and the machine's limit
	$(BIN)/python -m benchmarks

docs: $(STAMP)  ## build the documentation, warnings are errors
	@rm -rf docs/generated  # pages of names that are gone would be warnings
	$(BIN)/sphinx-build -W --keep-going -q -b html docs docs/_build/html
	@echo "docs/_build/html/index.html"

lint: $(STAMP)  ## style and import rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)  ## static types
	$(BIN)/mypy -p tensoralg

layers: $(STAMP)  ## the floors of the house
	$(BIN)/lint-imports

notebooks: $(STAMP)  ## run every notebook and check that it matches its script
	$(BIN)/python -m pytest --nbmake --nbmake-timeout=300 notebooks
	$(BIN)/jupytext --test --to notebook notebooks/*.py

format: $(STAMP)  ## format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:  ## remove what was built, the environment included
	rm -rf $(VENV) docs/_build docs/generated demo-report build dist
