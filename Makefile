# Everything starts here, on a machine with Python 3.11 or newer and make. `make` alone lists the commands.
.DEFAULT_GOAL := help
.PHONY: help demo test test-engines test-cluster check format generate test-isolated bench dist clean

UV := .uv/bin/uv
RUN := .venv/bin
# An interpreter of this machine, never a downloaded one: what runs here is what the machine has.
export UV_PYTHON_DOWNLOADS := never
# The fastest of them, unless UV_PYTHON says which.
CHOSEN := .uv/interpreter
SYNC = UV_PYTHON="$${UV_PYTHON:-$$(cat $(CHOSEN))}" $(UV) sync --locked --inexact --quiet $(BYTECODE)
# One environment for the whole workspace, whatever environment the shell has active. What was installed into it besides
# (a plugin that is being written) stays.
unexport VIRTUAL_ENV
# The next process that imports a file reads its bytecode: pytest's assertions alone take ten seconds to compile, which
# each worker of `make test` would do again.
unexport PYTHONDONTWRITEBYTECODE
ANNOUNCE := test -d .venv || echo "Installing packages into .venv/ ..."
# Bytecode of what is installed, once a lock file, and of the members' sources where they changed: else the first start
# of each command pays for it.
COMPILED = .venv/compiled-for-$@
BYTECODE = $$(test $(COMPILED) -nt uv.lock || echo --compile-bytecode)
COMPILE = touch $(COMPILED) && $(RUN)/python -m compileall -q contracts shared services tools
# Which vLLM `make test-engines` installs.
VLLM ?= 0.32.0
# Processes that `make test` runs tests in. More than half of the time a test waits for processes and timers, so there are
# more of them than processors.
WORKERS ?= $(shell expr 2 \* $$(nproc))
# Extra arguments for pytest, e.g. make test ARGS="-k streaming -x"
ARGS ?=

help: ## List the commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(CHOSEN) ## Start a whole gateway with simulated engines, send it mixed traffic, show who served what and why
	@$(ANNOUNCE)
	@$(SYNC) --no-dev --package pointsman-cli
	@$(COMPILE)
	@$(RUN)/pointsman demo

# Neighbours stay together, since the tests of one file share what takes seconds to start.
test: environment ## Run every test
	$(RUN)/pytest -n $(WORKERS) --dist worksteal $(ARGS)

# Two engines, their gateway and the suite want what a developer's machine has; the first run installs 6 GB.
test-engines: environment ## Run the suite for engines on a real vLLM for CPUs (an hour or more; VLLM=0.32.0)
	$(RUN)/pytest tests/engines --vllm $(VLLM) --engine-results tests/engines/results/vllm-$(VLLM).json $(ARGS)

# kubectl and helm of PATH, the cluster of KUBECONFIG, images of this version that it can pull. Half an hour with three nodes.
test-cluster: environment ## Install each shape in a real Kubernetes cluster and change, kill and scale it under load
	$(RUN)/python -m tests.cluster $(ARGS)

check: check-lock check-format check-lint check-imports check-structure check-contracts check-deploy check-types ## Format, lint, types, import rules, figures of the structure, generated files, lock file

.PHONY: check-lock check-format check-lint check-imports check-structure check-contracts check-deploy check-types
check-lock: $(UV)
	$(UV) lock --check
check-format: environment
	$(RUN)/ruff format --check
check-lint: environment
	$(RUN)/ruff check
check-imports: environment
	$(RUN)/lint-imports
check-structure: environment
	$(RUN)/python scripts/structure.py
	$(RUN)/python scripts/write_scheduler_plugins.py --check
check-contracts: environment
	$(RUN)/python -m pointsman_contracts export --check
	$(RUN)/python -m pointsman_contracts compat
	$(RUN)/pointsman nats permissions --check deploy/nats/permissions.conf
check-deploy: environment
	$(RUN)/python scripts/render_manifests.py --check
check-types: environment
	$(RUN)/pyright

format: environment ## Rewrite the code in the project's format and mend what ruff can mend
	$(RUN)/ruff format
	$(RUN)/ruff check --fix

generate: environment ## Write what is generated: schemas, AsyncAPI, permissions on NATS, the configuration reference, Kubernetes manifests
	$(RUN)/python -m pointsman_contracts export
	$(RUN)/pointsman nats permissions > deploy/nats/permissions.conf
	$(RUN)/pointsman config reference > docs/configuration-reference.md
	$(RUN)/python scripts/write_engines_document.py
	$(RUN)/python scripts/write_scheduler_plugins.py
	$(RUN)/python scripts/render_manifests.py

test-isolated: environment ## Run each member's tests with nothing installed but what it declares
	$(RUN)/python scripts/test_isolated.py $(ARGS)

bench: environment ## Measure what the gateway costs a request (benchmarks/overhead)
	$(RUN)/python -m benchmarks.overhead $(ARGS)

dist: environment ## Build the wheels of a release into dist/, the same bytes from the same commit
	$(RUN)/python scripts/build_wheels.py

clean: ## Remove environments, caches and what was run
	rm -rf .venv .uv .pytest_cache .ruff_cache .hypothesis .import_linter_cache run

.PHONY: environment
environment: $(CHOSEN)
	@$(ANNOUNCE)
	@$(SYNC) --all-packages
	@$(COMPILE)

$(UV):
	@scripts/get-uv.sh

$(CHOSEN): | $(UV)
	@scripts/choose-python.sh
