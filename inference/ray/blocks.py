"""Reading a Ray dataset while it runs."""

from __future__ import annotations

from collections.abc import Generator

import pyarrow as pa
import ray
from ray.data import Dataset
from ray.data.block import BlockAccessor


def iter_blocks(dataset: Dataset) -> Generator[pa.Table]:
    """Run the dataset; its blocks, each as soon as it is there. Closing the generator stops the run.

    `iter_batches`, told to prefetch nothing so as not to hold a block back, leaves a thread behind in each run
    (Ray 2.60), and costs more.

    Raises:
        RayError, ExecutionTimeoutError: as the run has.
    """
    for bundle in dataset.iter_internal_ref_bundles():
        for block in ray.get(list(bundle.block_refs)):
            yield BlockAccessor.for_block(block).to_arrow()
