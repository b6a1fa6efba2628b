"""`art run`: what a run.toml describes, from its first batch to its last, with what is shown meanwhile."""
