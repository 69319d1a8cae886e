"""OpenRLHF adapter for retool_env: the executor, the instance and the agent files (see adapters/openrlhf/README.md)."""
