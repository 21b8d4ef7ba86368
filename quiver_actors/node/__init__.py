"""A running node: settings become a supervisor and its workers, which serve connections and own the list of topics."""
