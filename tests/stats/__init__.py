import pytest
import scipy

needs_new_scipy = pytest.mark.skipif(
    tuple(map(int, scipy.__version__.split(".")[:2])) < (1, 16),
    reason="asks scipy for options of 1.16; the library does not",
)
