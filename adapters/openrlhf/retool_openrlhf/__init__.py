"""OpenRLHF adapter for retool_env: the agent executor and its shim live here (see adapters/openrlhf/README.md)."""
