"""Which versions of PySpark can be used."""

from __future__ import annotations

import re
import sys

from shoal.errors import ConfigError

OLDEST = (3, 5)


def refuse_old_pyspark(loaded: str = "") -> None:
    """Refuses versions of PySpark under which Shoal does not work.

    Under 3.4 the tasks that write a DataFrame report no rows, and no error.

    Args:
        loaded: Version of PySpark, "" for that of the module that is loaded.

    Raises:
        ConfigError: It is too old.

    Example:
        >>> refuse_old_pyspark("3.5.4-amzn-0")
        >>> refuse_old_pyspark("3.4.4")
        Traceback (most recent call last):
        ...
        shoal.errors.ConfigError: PySpark 3.4.4 is loaded. Expected 3.5 or later. ...
    """
    found = loaded or str(getattr(sys.modules.get("pyspark"), "__version__", ""))
    numbers = tuple(map(int, re.findall(r"\d+", found)[:2]))
    if numbers and numbers < OLDEST:
        raise ConfigError(
            f"PySpark {found} is loaded. Expected 3.5 or later. Install it: pip "
            "install 'pyspark>=3.5,<5'. `shoal doctor` shows what fits beside it."
        )
