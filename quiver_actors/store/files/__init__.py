"""The files of a topic's directory on one core beside logs and segments: their names, layouts, and the room that they take."""
