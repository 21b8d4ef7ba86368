"""What reading and writing segments must not import."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[4]

PROGRAM = """
import sys
from quiver_actors.store.segment.reader import SegmentReader

reader = SegmentReader(open(sys.argv[1], "rb").read())
for index in range(reader.bundle_count):
    reader.bundle(index)
    reader.item_count(index)
from quiver_actors.store.segment.codec import encode_directory, encode_manifest
from quiver_actors.store.segment.manifest import ManifestColumns
import numpy as np
encode_directory(reader.streams)
numbers = np.arange(2)
encode_manifest(ManifestColumns(np.ones(2, np.int32), np.zeros((2, 3), np.uint32), numbers - 1, *[numbers.astype("u8")] * 2, numbers))
print("pandas" in sys.modules)
"""


def test_segments_are_read_and_written_without_pandas() -> None:
    """pyarrow imports it behind some of its calls: 0.2 s in which a worker or consumer does nothing else."""
    golden = next((ROOT / "tests" / "golden" / "data").rglob("*.qseg"))
    found = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(golden)], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    assert found.stdout.strip() == "False"
