"""The documents that `quiver status`, `quiver top`, the page and the metrics show: figures read from the counters page, as plain values."""
