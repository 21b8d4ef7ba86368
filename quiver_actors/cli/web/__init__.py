"""A node's figures for other programs and for a browser: Prometheus text, JSON and one page. An extra: `quiver-actors[metrics]`."""
