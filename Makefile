# Two commands matter: `make demo` and `make test`. Both set up .venv the first time.
PYTHON ?= python3
JOBS ?= 2

VENV := .venv
PEERS := .peers
BIN := $(VENV)/bin
OUT := out

# --no-deps: a lock is complete, and nothing outside it may slip in.
INSTALL := -m pip --disable-pip-version-check -qq install --no-input
LOCKED := $(INSTALL) --no-deps --require-hashes
EDITABLE := $(INSTALL) --no-deps --no-build-isolation --editable .

PYTEST := $(BIN)/python -m pytest -q -rs
# Every run leaves what failed, with its output, in out/.
JUNIT = --junit-xml=$(OUT)/junit-$(1).xml || { status=$$?; \
	  echo "what failed is in $(OUT)/junit-$(1).xml"; exit $$status; }
# A worker that crashes ends the run, with the name of its test: restarted ones may wait for ever.
PARALLEL := -n $(JOBS) --dist loadfile --max-worker-restart 0

export MPLBACKEND ?= Agg
# Otherwise every worker rewrites the assertions of every test file, in every run.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
# One thing after another, but for what `make test` runs side by side.
ifndef SIDE_BY_SIDE
.NOTPARALLEL:
endif
.DELETE_ON_ERROR:
.PHONY: help demo test spark check other install deep bench docs lock mutants peers clean \
	distclean lint wheel quick tests apart kernels

help: ## list the commands
	@awk -F ':.*## ' '/^[a-z]+:.*## /{printf "  make %-10s %s\n", $$1, $$2}' Makefile

demo: $(VENV)/.demo ## set up what the tour needs, then take the tour
	@$(BIN)/demur tour

# What takes one processor and waits for nobody runs beside tests that wait a lot.
test: $(VENV)/.full ## set up everything, run everything that must pass
	@mkdir -p $(OUT); $(MAKE) --no-print-directory kernels lint wheel docs >$(OUT)/lint.log 2>&1 & \
	  $(MAKE) --no-print-directory apart && $(MAKE) --no-print-directory tests; tests=$$?; \
	  wait $$!; lint=$$?; cat $(OUT)/lint.log; exit $$((tests + lint))

check: $(VENV)/.full ## the fast part: lint, types, layers, quick tests
	@SIDE_BY_SIDE=1 $(MAKE) --no-print-directory -j2 lint quick

spark: $(VENV)/.full ## the tests of the Spark adapter and its pages (a JVM takes its time)
	$(say) "Spark"
	@$(PYTEST) tests/adapters/spark tests/docs/test_howto.py -m "spark and not deep" \
	  $(call JUNIT,spark)

# Another Python gets an environment of its own. torch is left out there: dev.lock has
# everything else, and what needs torch is named at the end of the run.
OTHER = .venvs/$(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])')
other: ## the quick tests on another Python, without torch: make other PYTHON=python3.13
	@$(MAKE) --no-print-directory VENV=$(OTHER) $(OTHER)/.quick
	$(say) "quick tests on $$($(OTHER)/bin/python --version)"
	@mkdir -p $(OUT)
	@DEMUR_WITHOUT=torch $(OTHER)/bin/python -m pytest -q -rs $(PARALLEL) -p no:cacheprovider tests \
	  -m "not deep and not slow and not serial and not spark and not torch" \
	  $(call JUNIT,$(notdir $(OTHER)))

install: wheel ## install the wheel into an empty environment, as a user would, and use it
	$(say) "the wheel in an empty environment"
	@$(BIN)/python tools/check_install.py $(OUT)/dist/*.whl --python $(PYTHON) --whole

deep: $(VENV)/.full ## the long statistical and crash runs
	$(say) "deep tests (long)"
	@$(PYTEST) -m deep $(call JUNIT,deep)

bench: $(VENV)/.full $(PEERS)/.done ## run benchmarks/*.py against the peers
	@set -e; for f in benchmarks/[a-z]*.py; do \
	  [ -e "$$f" ] || continue; echo "==> $$f"; $(BIN)/python "$$f"; done

# Strict: a dead link or a missing name is an error. The pages take nothing from elsewhere.
docs: $(VENV)/.full ## build the pages and the API reference into out/site
	$(say) "pages"
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@! grep -rnE --include='*.html' '<(script|link|img|iframe)[^>]*(src|href)="?(https?:)?//' \
	  $(OUT)/site || { echo "a page loads something from another place"; exit 1; }

mutants: $(VENV)/.full ## change the code at random, see what the tests miss (hours)
	@$(BIN)/python $(LOCKED) -r requirements/mutants.lock
	@set -e; for step in map run report; do \
	  $(BIN)/python -m tools.mutate $$step; done

peers: $(PEERS)/.done ## environment for peers whose pins conflict with ours

clean: ## remove outputs and caches, keep the environments
	@rm -rf $(OUT) dist build .pytest_cache .ruff_cache .mypy_cache .hypothesis \
	  .import_linter_cache
	@find src tests tools examples benchmarks -name __pycache__ -prune \
	  -exec rm -rf {} + 2>/dev/null || true

distclean: clean ## remove the environments too
	@rm -rf $(VENV) .venvs $(PEERS)

# --- the parts of `make test`

lint: $(VENV)/.full
	$(say) "format"
	@$(BIN)/ruff format --check --quiet . || { \
	  echo "not formatted; run: $(BIN)/ruff format ."; exit 1; }
	$(say) "lint"
	@$(BIN)/ruff check --quiet .
	$(say) "types"
	@$(BIN)/mypy
	$(say) "layers"
	@$(BIN)/lint-imports --no-logo

# Or three workers would compile them at the same time.
kernels: $(VENV)/.full
	$(say) "kernels"
	@$(BIN)/python -m tools.compile_kernels

wheel: $(VENV)/.full
	$(say) "wheel"
	@rm -rf $(OUT)/dist; mkdir -p $(OUT)
	@$(BIN)/python -m build --wheel --no-isolation --outdir $(OUT)/dist . \
	  >$(OUT)/build.log 2>&1 || { cat $(OUT)/build.log; exit 1; }
	@$(BIN)/python tools/check_wheel.py $(OUT)/dist/*.whl

quick: $(VENV)/.full
	$(say) "quick tests"
	@$(PYTEST) $(PARALLEL) tests -m "not deep and not slow and not serial" $(call JUNIT,check)

# Unit tests, doctests, examples, the blocks of README.md and docs/. One worker more than
# processors, and a process for tests that mostly wait, for servers, links and children: a
# worker would have to import everything for them. Rewriting the assertions of all test
# files would take each worker 12 s.
MOST := not deep and not serial and not spark
WAITING := tests/ledger/test_hosts.py tests/ledger/test_crash.py \
	tests/ledger/test_failover.py tests/unlearning/test_crash.py
tests: $(VENV)/.full
	@rm -f $(OUT)/junit-parallel.xml $(OUT)/junit-waiting.xml
	$(say) "tests"
	@$(PYTEST) $(WAITING) -p no:cacheprovider -m "$(MOST)" \
	  --junit-xml=$(OUT)/junit-waiting.xml >$(OUT)/waiting.log 2>&1 & \
	  $(PYTEST) $(PARALLEL) -n $$(($(JOBS) + 1)) --assert=plain -m "$(MOST)" \
	  $(addprefix --ignore=,$(WAITING)) --junit-xml=$(OUT)/junit-parallel.xml; most=$$?; \
	  wait $$!; waiting=$$?; cat $(OUT)/waiting.log; \
	  [ $$most = 0 ] || { \
	  echo "what failed is in $(OUT)/junit-parallel.xml; once more, with the values:"; \
	  $(PYTEST) --last-failed --last-failed-no-failures none -m "$(MOST)"; }; \
	  exit $$((most + waiting))
	@$(BIN)/python tools/check_skips.py $(OUT)/junit-parallel.xml $(OUT)/junit-waiting.xml \
	  $(OUT)/junit-serial.xml

apart: $(VENV)/.full
	@rm -f $(OUT)/junit-serial.xml
	$(say) "tests of several processes, of timing and of rounding, one after another"
	@$(PYTEST) tests/training/processes tests/training/clipping/test_rounding.py \
	  tests/core/test_recording.py -m "serial and not deep" $(call JUNIT,serial)

# --- environments: a stamp is written last, so an interrupted set-up is taken up again

say = @echo "==>"

define venv
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "demur needs Python 3.11 or later; '$(PYTHON)' is: $$($(PYTHON) --version 2>&1)."; \
	  echo "Name another one: make $(MAKECMDGOALS) PYTHON=python3.12"; exit 1; }
	@$(1)/bin/python -m pip --version >/dev/null 2>&1 || { \
	  echo "==> create $(1)"; $(PYTHON) -m venv $(1) || { \
	  echo "'$(PYTHON) -m venv' failed (on Debian: apt-get install python3-venv)"; exit 1; }; }
endef

$(VENV)/.demo: requirements/demo.lock pyproject.toml
	$(call venv,$(VENV))
	$(say) "install what the tour needs (once; about a minute)"
	@$(BIN)/python $(LOCKED) -r requirements/demo.lock
	@$(BIN)/python $(EDITABLE)
	@touch $@

# torch before anything that depends on it, then everything with hashes, then Spark, built
# with what is there, then what the machine's build of torch needs (nothing for the CPU build).
$(VENV)/.full: requirements/dev.lock requirements/torch.lock requirements/spark.lock \
		pyproject.toml
	$(call venv,$(VENV))
	$(say) "install torch (once)"
	@$(BIN)/python $(INSTALL) --no-deps -r requirements/torch.lock
	$(say) "install everything else (once; a few minutes)"
	@$(BIN)/python $(LOCKED) -r requirements/dev.lock
	$(say) "build Spark (once; about a minute)"
	@$(BIN)/python $(LOCKED) --no-build-isolation -r requirements/spark.lock
	@$(BIN)/python $(INSTALL) -r requirements/torch.lock
	@$(BIN)/python $(EDITABLE)
	@$(BIN)/python -m pip --disable-pip-version-check check
	@touch $(VENV)/.demo $@

$(VENV)/.quick: requirements/dev.lock pyproject.toml
	$(call venv,$(VENV))
	$(say) "install everything but torch and Spark (once; about a minute)"
	@$(BIN)/python $(LOCKED) -r requirements/dev.lock
	@$(BIN)/python $(EDITABLE)
	@touch $@

$(PEERS)/.done: requirements/peers.lock
	$(call venv,$(PEERS))
	$(say) "install the peers (once)"
	@$(PEERS)/bin/python $(LOCKED) -r requirements/peers.lock
	@$(PEERS)/bin/python -m pip --disable-pip-version-check check
	@touch $@

# --- locks: one resolution for every platform and Python, names, versions and hashes only

COMPILE = "$$tools"/bin/uv pip compile --quiet --universal --python-version 3.11 \
	--fork-strategy fewest --prerelease disallow --generate-hashes --no-annotate \
	--no-emit-index-url --custom-compile-command "make lock" --upgrade

lock: ## resolve all dependencies anew
	$(say) "resolve"
	@set -e; tools=$$(mktemp -d); trap 'rm -rf "$$tools"' EXIT; \
	$(PYTHON) -m venv "$$tools"; "$$tools"/bin/python $(INSTALL) uv; \
	$(COMPILE) pyproject.toml --group build --extra jax --extra orbax --extra torch \
	  --extra huggingface --extra postgres --extra serve --extra spark --extra dev -c requirements/torch.lock \
	  -c requirements/spark.lock --no-emit-package torch --no-emit-package pyspark \
	  -o requirements/dev.lock; \
	$(COMPILE) pyproject.toml --group build --extra jax -c requirements/dev.lock \
	  -o requirements/demo.lock; \
	$(COMPILE) --group mutants -c requirements/dev.lock -o requirements/mutants.lock; \
	$(COMPILE) --group peers -o requirements/peers.lock
	@if grep -nE '://|^-|(^|[ "])/' requirements/*.lock; then \
	  echo "a lock names an address or a path"; exit 1; fi
	@wc -l requirements/*.lock
