"""The S3 store of the tests of files serves here as well."""

from tests.data.files.conftest import s3, s3_endpoint

__all__ = ["s3", "s3_endpoint"]
