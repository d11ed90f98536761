# `make help` lists the targets.
SHELL := /bin/bash
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

VENV := .venv
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)
export ANSIBLE_CONFIG := $(CURDIR)/ansible.cfg
INVENTORY ?= inventories/lab
SCENARIO ?= default node nvidia production production-ha airgap
CACHE = $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/tenantry-gpu
# For example: make lab ARGS='-e lab_name=second'
ARGS ?=
LAB = ansible-playbook -i $(INVENTORY) $(ARGS)

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: lab
lab: $(VENV)/run ## Bring the lab up (or on) and prove it: eight checks, one report
	$(LAB) playbooks/site.yml

.PHONY: check-inventory
check-inventory: $(VENV)/run ## Judge INVENTORY=inventories/production without touching a host
	$(LAB) playbooks/check_inventory.yml

.PHONY: destroy
destroy: $(VENV)/run ## Remove the lab; the caches stay
	$(LAB) playbooks/teardown.yml

.PHONY: clean
clean: destroy ## Remove the lab, the caches and the virtual environment
	$(LAB) playbooks/teardown.yml -e teardown_caches=true
	rm -rf $(VENV) .state

.PHONY: test
test: lint unit sanity integration molecule ## Run everything that CI runs

.PHONY: lint
lint: $(VENV)/test ## Check style and types
	yamllint --strict .
	ruff check .
	ruff format --check .
	mypy
	ansible-lint --offline
	scripts/reference --check

.PHONY: docs
docs: $(VENV)/test ## Write the modules' reference from their documentation
	scripts/reference

.PHONY: unit
unit: $(VENV)/test ## Run the unit tests
	pytest tests/unit

.PHONY: components
components: $(VENV)/run ## Build the programs that the integration tests run, once
	images/build.py components --cache $(CACHE) etcd helm kubernetes

.PHONY: integration
integration: $(VENV)/test components ## Run every module against a real API server, without containers
	pytest tests/integration

.PHONY: sanity
sanity: $(VENV)/test ## Run ansible-test's sanity tests and units
	scripts/sanity

.PHONY: molecule
molecule: $(VENV)/test ## Run the scenarios in containers, or one: make molecule SCENARIO=node
	set -e; for scenario in $(SCENARIO); do molecule test --scenario-name $$scenario --no-command-borders; done

.PHONY: bench
bench: $(VENV)/run ## Time the lab against a plain shell script of the same steps
	bench/lab.sh

.PHONY: bench-modules
bench-modules: $(VENV)/test components ## Time the modules on a real API server with 1,000 nodes and 5,000 pods
	bench/modules.py

.PHONY: lock
lock: $(VENV)/test ## Lock the newest versions that requirements/*.in allow
	for set in run test; do uv pip compile --universal --python-version 3.12 --upgrade --quiet --no-header requirements/$$set.in -o requirements/$$set.txt; done

# A virtual environment per make run is dear: a stamp says which lock file it holds.
$(VENV)/run: requirements/run.txt scripts/find-python | $(VENV)
	pip install --quiet --progress-bar off -r requirements/run.txt
	touch $@

$(VENV)/test: requirements/test.txt $(VENV)/run
	pip install --quiet --progress-bar off -r requirements/test.txt
	touch $@

$(VENV):
	$$(scripts/find-python) -m venv $@
