"""What `deploy-kit serve` exports beside the engine: whether speculation pays, the plan, the start-up."""
