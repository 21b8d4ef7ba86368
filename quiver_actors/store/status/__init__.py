"""How a node is, as plain values: figures read from its counters page, and the document that commands, programs and the page are shown."""
