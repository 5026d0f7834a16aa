# `make up` deploys, `make test` tests; `make help` lists the rest.
.DEFAULT_GOAL := help
.PHONY: help up down dev lint unit test lock

PYTHON ?= python3

help:  ## list the targets
	@sed -n 's/^\([a-z]*\):.*  ## /\1\t/p' $(MAKEFILE_LIST) | expand -t 10

up: dev  ## set up this machine and bring kimi-eagle up, until a completion comes back
	.venv/bin/deploy-kit up

down: dev  ## stop everything that `make up` started
	.venv/bin/deploy-kit down

dev: .venv/.ready  ## the development environment, pinned by hash
.venv/.ready: requirements/dev.txt pyproject.toml
	scripts/make-venv.sh "$(PYTHON)"
	touch $@

lint: dev  ## every linter
	scripts/lint.sh

unit: dev  ## the fast tests
	.venv/bin/pytest -q tests/unit

test: dev  ## everything: what CI runs
	scripts/test.sh

lock:  ## resolve requirements/*.in again (needs uv)
	cd requirements && for name in runtime ops dev; do \
	  uv pip compile --quiet --universal --generate-hashes --no-emit-index-url --no-header \
	    --python-version 3.11 $$name.in -o $$name.txt || exit 1; done
