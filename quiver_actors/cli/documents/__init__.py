"""What commands make of the document of a node (`store.status`): rates, loads, backlogs, and JSON."""
