"""Where the cells of a matrix run: worker processes of this machine, or a Ray cluster."""
