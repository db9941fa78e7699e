"""A method and a benchmark that take no time."""
