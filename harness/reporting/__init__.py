"""Tables, plots, claims and pages from metrics files and run records; never imports torch."""
