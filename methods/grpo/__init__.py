"""GRPO as pure functions: one equation each."""
