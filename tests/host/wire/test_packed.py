"""Arrays of rows, without a loop."""

import numpy as np
import pytest

from memleak_android.host.wire.packed import distinct


@pytest.mark.parametrize("n_rows", [0, 1, 2, 1000])
def test_equal_rows_have_one_number(n_rows: int) -> None:
    random = np.random.default_rng(n_rows)
    columns = [random.integers(0, 6, n_rows).astype(kind) for kind in ("<i4", "<u8", "u1")]
    columns[1] += np.uint64(2**64 - 6)  # not below 2^63, and not to be taken for a float
    first, number = distinct(*columns)
    rows = list(zip(*(column.tolist() for column in columns), strict=True))
    assert [rows[i] for i in first.tolist()] == sorted(set(rows))
    assert [rows[first[i]] for i in number.tolist()] == rows
    assert first.tolist() == [rows.index(row) for row in sorted(set(rows))]
