"""PySpark's daemon, which has imported what its workers need before it forks them; not a test.

Each worker imports pandas anew otherwise, which takes longer than all that the tests do in one.
"""

import pandas  # noqa: F401
import pyarrow  # noqa: F401
from pyspark.daemon import manager

if __name__ == "__main__":
    manager()
