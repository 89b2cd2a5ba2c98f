"""Files on the file systems that Spark reaches, through its JVM.

Credentials and kinds of file systems are those of the session.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from shoal.errors import DataError
from shoal.jvm_errors import cause


def put(session: SparkSession, file: Path, url: str) -> None:
    """Copies a file of this machine to a URL."""
    system, place = _place(session, url)
    system.copyFromLocalFile(False, True, _path(session, file.as_uri()), place)


def get(session: SparkSession, url: str, file: Path) -> None:
    """Copies a file from a URL to this machine."""
    system, place = _place(session, url)
    # Without a file of checksums beside it.
    system.copyToLocalFile(False, place, _path(session, file.as_uri()), True)


def _path(session: SparkSession, url: str) -> Any:
    jvm: Any = session.sparkContext._jvm  # pyright: ignore[reportPrivateUsage]
    return jvm.org.apache.hadoop.fs.Path(url)


def _place(session: SparkSession, url: str) -> tuple[Any, Any]:
    context: Any = session.sparkContext
    path = _path(session, url)
    return path.getFileSystem(context._jsc.hadoopConfiguration()), path


@contextmanager
def telling(path: str) -> Generator[None]:
    """Tells of errors of the JVM in a sentence.

    Raises:
        DataError: There was one.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, Py4JJavaError):
            java: Any = error.java_exception  # pyright: ignore
            text = str(java.toString())
        elif isinstance(error, PySparkException):
            text = str(error)
        else:
            raise
        raise DataError(
            f"{path} cannot be used: {cause(text)}. Expected a folder that was "
            "saved, or a new one to save to. Correct the path; to replace what is "
            "there, call write().overwrite().save(path)."
        ) from error
