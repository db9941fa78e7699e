"""ScaleMCP mini-suite: find a tool among hundreds, call it, answer."""
