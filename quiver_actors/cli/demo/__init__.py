"""`python -m quiver_actors.demo`: the main job on real data, with a killed worker on the way, checked row by row.

A Spark job reads the flights and the weather of New York's airports in 2013, groups both by blocks of hours and pushes each block as one
bundle with two slots. Two workers make the bundles durable, two subscribers read them: one writes Parquet, one counts. In the
middle one worker is killed. At the end the Parquet files are compared with the source.

Then Structured Streaming writes the flights into a topic and reads them out of it into Parquet, exactly once, while an executor of
Spark and a worker of the node are killed.
"""
