# The commands for development and CI. `make help` lists them.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
UV_VERSION := 0.13.8
STAMP := $(VENV)/.installed

# One thread per process: small CPU models are many times slower when threads compete.
export OMP_NUM_THREADS ?= 1
export TOKENIZERS_PARALLELISM := false
# Some images forbid bytecode; then every process of every run would compile the code and the tests again, for seconds.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help install demo up test long everything experiments lint console-check check format measure picture docs lock sbom clean

help: ## show this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /  make \1|/' | column -t -s '|'

# Without LOCK the machine decides (locks/choose.sh). If the choice is another one than last time, e.g. after an update of
# the driver, everything is installed again.
install: ## make .venv with every extra and the development tools; LOCK=cpu or LOCK=cuda overrides the choice of the lock
	@lock=$$(locks/choose.sh $(LOCK)) || exit; \
	installed=$$(cat $(STAMP) 2>/dev/null); \
	if test "$${installed:-cpu}" != "$$lock" || test locks/$$lock.lock -nt $(STAMP); then rm -f $(STAMP); fi; \
	$(MAKE) --no-print-directory LOCK=$$lock $(STAMP)

# uv when pip can get it, else pip itself; both take the lock as it stands and resolve nothing. A CPU build of torch comes
# from pip's configured find-links when there is one, else from uv's own CPU index; the CUDA build is PyPI's, and a CPU build
# in find-links would be taken for it. Bytecode is compiled now: without it each start of vLLM costs 20 s more.
$(STAMP): locks/cpu.lock pyproject.toml
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install -qq uv==$(UV_VERSION) || echo "uv cannot be installed; installing with pip"
	@lock="$(LOCK)"; test -n "$$lock" || lock=$$(locks/choose.sh) || exit; \
	links="$${PIP_FIND_LINKS:-$$($(BIN)/python -m pip config get global.find-links 2>/dev/null)}"; \
	echo "installing the locked environment into $(VENV): about $$(test $$lock = cpu && echo 3 || echo 8) GB, one to two minutes"; \
	if test -x $(BIN)/uv; then \
		export VIRTUAL_ENV=$(CURDIR)/$(VENV); \
		if test $$lock = cuda; then unset UV_FIND_LINKS UV_TORCH_BACKEND; \
		elif test -n "$$links"; then export UV_FIND_LINKS="$$links"; else export UV_TORCH_BACKEND=cpu; fi; \
		$(BIN)/uv pip install --quiet --compile-bytecode --no-deps -r locks/$$lock.lock && \
		$(BIN)/uv pip install --quiet --no-deps --no-build-isolation --editable .; \
	else \
		$(BIN)/python -m pip install --quiet --no-deps -r locks/$$lock.lock && \
		$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .; \
	fi && echo $$lock > $(STAMP)

demo: $(STAMP) ## run the whole loop: JSONL in, tuned model out, answers side by side
	@$(BIN)/mens demo

up: $(STAMP) ## start everything on this machine and keep it running until Ctrl-C
	@$(BIN)/mens up

# Two processes: most of a system test is waiting. Tests that share servers stay in one process (tests/support/scheduling.py).
test: $(STAMP) ## run the tests: real Valkey, PostgreSQL, bitsandbytes and vLLM
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder -m "not (long or experiment)"

long: $(STAMP) ## run the long tests: kills at random, more values, installations of other kinds
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder -m long

everything: $(STAMP) ## run the tests of `make test` and `make long` at once, as CI does: what they share starts once
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder -m "not (experiment)"

experiments: $(STAMP) ## tune the real model as the documentation says, and print its figures: about an hour, and no part of CI
	$(BIN)/python -m pytest -s -m experiment

lint: $(STAMP) ## check format, lint, types and import contracts
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports >/dev/null || $(BIN)/lint-imports --no-logo

# One test, so that `make test` runs it as well; `make lint` needs no Node.
console-check: $(STAMP) ## check the types of the console's JavaScript, without a build
	$(BIN)/python -m pytest -q tests/console/test_types.py

# Each process begins with one half of the files, so that the slow imports and fixtures of a file are made in one process only.
check: lint ## lint, and run the unit tests
	$(BIN)/python -m pytest -q -n 2 --dist worksteal -m "not (vllm or postgres or system or browser or deploy or torch or network or matrix or bench or sandbox or simulation or exhaustive or long or experiment)" --durations=0 --durations-min=2

format: $(STAMP) ## format the code and apply the linter's fixes
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

measure: $(STAMP) ## print the measures of the code, and their targets (CONTRIBUTING.md)
	@$(BIN)/python -m scripts.measure

# Without the lines that only show that it goes on.
PROGRESS := ^( +\w.* is ready$$|[0-9:]+ waiting for|(running|preflight|training|publishing|self-evaluation)\b)
picture: $(STAMP) ## make the docs' picture of the demo from a run of it
	$(BIN)/python -m scripts.terminal_picture docs/pictures/demo.svg --shown "make demo" --omit '$(PROGRESS)' -- $(BIN)/mens demo

# Sphinx has an environment of its own; only the pages from the code need the product (docs/decisions/0080).
SITE := build/docs
SITE_TOOLS := .cache/docs-tools
docs: $(STAMP) $(SITE_TOOLS)/.installed ## build the documentation site; a link that leads nowhere is an error
	@$(BIN)/python -m scripts.site.pages $(SITE)/source
	@$(SITE_TOOLS)/bin/python -m sphinx --quiet --fail-on-warning --keep-going --jobs auto -c scripts/site $(SITE)/source $(SITE)/html
	@echo "the site is in $(SITE)/html"

lock: ## resolve the lock files again (maintainers; see locks/README.md)
	@sed -n '1,70p' locks/README.md

# As the images' own are made (api/Dockerfile). Its tools need nothing of .venv.
SBOMS := build/sbom
BUILD_TOOLS := .cache/build-tools
sbom: $(patsubst %,$(SBOMS)/%.cdx.json,api worker worker-cpu serving serving-cpu) ## write what each image is made of, as CycloneDX

$(SBOMS)/%.cdx.json: locks/%.lock pyproject.toml $(BUILD_TOOLS)/.installed
	@mkdir -p $(@D)
	@$(BUILD_TOOLS)/bin/cyclonedx-py requirements --pyproject pyproject.toml --output-reproducible $(SBOM_FLAGS) -o $@ $<
	@test $* != api || $(PYTHON) -m scripts.console_components $@ api/console/vendor/vendored.json

# An environment for tools: what one lock has, and nothing else. A list of targets, because make deletes what a pattern alone makes on the way.
$(SITE_TOOLS)/.installed $(BUILD_TOOLS)/.installed: .cache/%-tools/.installed: locks/%.lock
	@if test -x $(BIN)/uv; then \
		$(BIN)/uv venv -q --clear $(@D) && \
		$(BIN)/uv pip install -q --python $(@D)/bin/python --require-hashes -r $<; \
	else \
		$(PYTHON) -m venv --clear $(@D) && \
		$(@D)/bin/python -m pip install -qq --require-hashes -r $<; \
	fi
	@touch $@

clean: ## remove the environment and everything that was generated here
	rm -rf $(VENV) .mens .tools .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis *.egg-info build
