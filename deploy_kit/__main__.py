"""`python -m deploy_kit` is the `deploy-kit` command."""

from deploy_kit.cli.app import main

main()
