.PHONY: dev
dev: .venv/.ready  ## the development environment
.venv/.ready: requirements/dev.txt pyproject.toml
	test -x .venv/bin/python || python3 -m venv .venv
	.venv/bin/python -m pip install --quiet --no-deps --require-hashes -r requirements/dev.txt
	.venv/bin/python -m pip install --quiet --no-deps --no-build-isolation -e .
	touch $@
