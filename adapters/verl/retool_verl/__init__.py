"""verl adapter for retool_env: the agent loop, the tool and the reward functions (see adapters/verl/README.md)."""
