"""Samples in files: Parquet, CSV, NumPy, images, TFRecord; on disk, S3 or elsewhere."""

from shoal.data.files.listing import list_files
from shoal.data.files.opening import open_files
from shoal.data.files.source import FileSource
from shoal.data.files.store import FileEntry

__all__ = ["FileEntry", "FileSource", "list_files", "open_files"]
