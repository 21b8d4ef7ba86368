"""Figures that processes publish on the counters page: which there are, and histograms. Writers and readers agree by this alone."""
