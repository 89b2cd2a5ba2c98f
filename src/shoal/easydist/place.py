"""The location of a script's data: bucket and prefix."""

from __future__ import annotations

from shoal.errors import ConfigError


def bucket_of(bucket: str | None, bucket_name: str | None) -> str:
    """Returns the bucket, given under either of its two names.

    Args:
        bucket: Name of the bucket, without "s3://".
        bucket_name: Name of the bucket, under the other argument that scripts use.

    Raises:
        ConfigError: No name was given, two that differ, or an invalid one.

    Example:
        >>> bucket_of(None, "texts")
        'texts'
        >>> bucket_of("texts", "images")
        Traceback (most recent call last):
        shoal.errors.ConfigError: bucket='texts' and bucket_name='images' differ. ...
    """
    if bucket and bucket_name and bucket != bucket_name:
        raise ConfigError(
            f"bucket={bucket!r} and bucket_name={bucket_name!r} differ. Expected one "
            "bucket; the two arguments mean the same. Give one of them."
        )
    name = bucket or bucket_name
    if not name:
        raise ConfigError(
            f"bucket={bucket!r} names no bucket. Expected the S3 bucket the data are "
            'in. Pass for example bucket="my-data".'
        )
    if "/" in name or ":" in name:
        raise ConfigError(
            f"bucket={name!r} is not a bucket's name. Expected it without 's3://' and "
            "without a path. Put the path into prefix=."
        )
    return name


def url_of(bucket: str, prefix: str) -> str:
    """Returns the URL of all files under a prefix.

    Args:
        bucket: Name of the bucket.
        prefix: A folder in it, "" for all of it, or a glob such as "data/part-*".

    Example:
        >>> url_of("texts", "data"), url_of("texts", "/data/a-*"), url_of("texts", "")
        ('s3://texts/data/', 's3://texts/data/a-*', 's3://texts/')
    """
    path = prefix.strip("/")
    is_glob = any(sign in path for sign in "*?[")
    return f"s3://{bucket}/{path}" + ("/" if path and not is_glob else "")
