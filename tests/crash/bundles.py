"""The bundles of the crash tests: a function of (producer, number), so that whoever has the two knows every byte."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa

TOPIC = "crash"


def bundle_of(producer: int, number: int) -> dict[int, pa.RecordBatch]:
    """One or two slots, a few rows to a few thousand, dictionaries now and then."""
    rng = random.Random(producer << 32 | number)
    rows = rng.choice((1, 3, 40, 400, 4000))
    values = np.random.default_rng(rng.randrange(1 << 32)).integers(0, 1 << 40, rows)
    found = {
        0: pa.record_batch(
            {
                "producer": pa.array([producer] * rows, pa.int32()),
                "number": pa.array([number] * rows, pa.int64()),
                "value": pa.array(values),
            }
        )
    }
    if rng.random() < 0.3:
        words = [f"{producer}-{number}-{word}" for word in range(rng.randrange(1, 5))]
        keys = pa.array([rng.randrange(len(words)) for _ in range(rows)], pa.uint8())
        found[7] = pa.record_batch({"word": pa.DictionaryArray.from_arrays(keys, pa.array(words))})
    return found
