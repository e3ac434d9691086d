# Two commands: `make demo` shows what KernBench does, `make test` proves that it is right. Both build .venv themselves.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

OLDEST := .venv-oldest
NEWEST := .venv-newest-triton
# A minute on two quiet cores: a tour of the whole system, and the unit tests of every package but the longest ones.
QUICK  := tests/test_tiny.py tests/unit -m "not slow"

MACHINES ?= pa la va,one_to_one la,one_to_one

.PHONY: demo test quick test-machines test-frontends test-oldest check docs oracle fuzz fuzz-exact bench clean

$(STAMP): pyproject.toml constraints.txt scripts/setup
	@PYTHON=$(PYTHON) scripts/setup $(VENV)
	@touch $@

demo: $(STAMP)  ## draw, probe and evaluate the default machine; run a kernel, and say how to look at the run
	@PATH="$(CURDIR)/$(BIN):$$PATH" scripts/demo

test: $(STAMP)  ## the whole suite, in parallel
	$(BIN)/python -m pytest -n auto --dist worksteal -q

quick: $(STAMP)  ## the quick tier: a minute
	$(BIN)/python -m pytest -n auto --dist worksteal -q $(QUICK)

test-machines: $(STAMP)  ## the whole suite on machines with other address models and channel mappings than the shipped one
	for machine in $(MACHINES); do scripts/suite-on $$machine -n auto --dist worksteal || exit 1; done

test-oldest: pyproject.toml scripts/lower_bounds  ## the quick tier with the least version of every package that pyproject.toml allows
	[ -x $(OLDEST)/bin/python ] || $(PYTHON) -m venv $(OLDEST)
	$(PYTHON) scripts/lower_bounds > $(OLDEST)/bounds.txt
	$(OLDEST)/bin/python -m pip install --quiet --disable-pip-version-check --editable . --requirement $(OLDEST)/bounds.txt
	$(OLDEST)/bin/python -m pytest -n auto --dist worksteal -q -W default::DeprecationWarning $(QUICK)  # old packages warn of each other

check: $(STAMP)  ## format, lint, types, import order, tests
	PATH="$(CURDIR)/$(BIN):$$PATH" scripts/check

docs: $(STAMP)  ## the site, into docs/_build/html; a broken reference fails
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[docs]' --constraint constraints.txt
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet -b html -d docs/_build/doctrees docs docs/_build/html
	@echo "docs/_build/html/index.html"

test-frontends: $(STAMP)  ## PyTorch, Triton and Liger's kernels on the machine, and the heavy judges (several hundred MB)
	scripts/frontends $(VENV)

oracle: test-frontends  ## its former name

fuzz: $(STAMP)  ## the long round: 10,000 mutated machines and command lines
	$(BIN)/python -m tests.fuzz --rounds 10000

fuzz-exact: $(STAMP)  ## 200 random programs on random machines, each with and without fast paths
	$(BIN)/python -m tests.fuzz_exact --programs 200

bench: $(STAMP)  ## what simulating costs: the fabric against the naive model, kernels in SimPy time-outs
	$(BIN)/python benchmarks/fabric.py
	$(BIN)/python benchmarks/kernels.py

clean:
	rm -rf $(VENV) $(OLDEST) $(NEWEST) build dist demo-out docs/_build .pytest_cache .mypy_cache .ruff_cache
