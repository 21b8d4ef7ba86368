"""Topics at run time: which there are, with what settings, and how that changes while a node runs.

catalogue    the durable list of topics: one file, one owner, a version
changes      what a change makes of a catalogue, or why it is refused: pure
rights       who may do what: pure
keeper       the owner, in the supervisor: carries out changes, deletes topics
aside        directories of deleted topics, and the segments in them that somebody still has
requests     the messages of a change, and asking for one
"""
